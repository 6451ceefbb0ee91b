"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { earth, photos, groups } = data;
  const ofMap = data.entries === null; // a page of a whole map, not of answers
  if (earth && photos.length) {
    // Photos on both sides of the antimeridian lie together: longitudes count on beyond 180 degrees.
    const middle = photos[0][1];
    const nearby = (at) => (at[1] -= 360 * Math.round((at[1] - middle) / 360));
    photos.forEach(nearby);
    for (const entry of data.entries || []) [entry, ...entry.matches].forEach((one) => one.at && nearby(one.at));
  }
  const entries = data.entries || photos.map(([lat, lon, heading, name, group], i) => (
    { at: [lat, lon], heading, name, group, walk: groups[group], verdict: groups[group], tone: "none", matches: [], thumbnail: data.thumbnails[i] }));
  const byId = (id) => document.getElementById(id);
  const { colour, element, figure, groupColour, pin, place, tooltip } = PlaceMap;
  const map = PlaceMap.create("map", { earth, tiles: data.tiles });
  const narrow = () => matchMedia("(max-width: 820px)").matches;
  const unbroken = (text) => text.replace(/(\d) (m|km|%)(?!\w)/g, "$1\u00a0$2");

  const legend = L.control({ position: "topright" });
  const NAMED = 8; // most groups that the legend names
  legend.onAdd = () => {
    const some = (test) => entries.some(test);
    const rows = [
      ["sure", "located, confident", some((e) => e.tone === "sure")],
      ["unsure", "located, not confident", some((e) => e.tone === "unsure")],
      ["ring", "radius of its position", some((e) => e.radius_m)],
      ["match", ofMap ? "chosen photo" : "match", ofMap || some((e) => e.matches.length)],
      ["dash", "line to a match", some((e) => e.matches.length)],
      ["place", "photo of the map", !ofMap && photos.length],
      ["wedge", "heading", photos.some((p) => p[2] !== null)],
    ].filter((row) => row[2]).map(([kind, label]) => element("div", {}, element("i", { class: `swatch ${kind}` }), label));
    if (ofMap) rows.push(...groups.slice(0, NAMED).map((name, i) => element("div", {}, dot(groupColour(i)), name || "no group")));
    if (ofMap && groups.length > NAMED) rows.push(element("div", {}, `and ${groups.length - NAMED} more groups`));
    const box = element("details", { class: "legend" }, element("summary", {}, "Legend"), ...rows);
    box.open = !narrow(); // on a phone it would hide the map
    return box;
  };
  function dot(fill) {
    const swatch = element("i", { class: "swatch" });
    swatch.style.background = fill;
    return swatch;
  }

  const places = L.layerGroup().addTo(map);
  if (!ofMap) for (const [lat, lon, heading, name] of photos) tooltip(place([lat, lon], { heading, fillColor: colour("place"), fillOpacity: 0.6 }), name).addTo(places);
  const fill = (entry) => (ofMap ? groupColour(entry.group) : colour(entry.tone));
  const ink = (entry) => (ofMap ? { radius: 4.5, weight: 1 } : { radius: 6.5, weight: 1.5 });
  const pins = entries.map((entry, i) => {
    if (!entry.at) return null;
    const drawn = place(entry.at, { heading: entry.heading, fillColor: fill(entry), stroke: true, color: "#fff", fillOpacity: 1, ...ink(entry) });
    return tooltip(drawn, entry.name).on("click", () => select(i));
  });
  const shown = L.layerGroup().addTo(map), focus = L.layerGroup().addTo(map);
  legend.addTo(map);

  // The list: which entries, in which order; a part of a long one is drawn at a time

  const LISTED = 200;
  let current = -1, chosen = 0, order = [], listed = 0;
  const KEPT = { "": () => true, sure: (e) => e.tone === "sure", unsure: (e) => e.tone === "unsure", none: (e) => e.tone === "none" };
  const SORTED = { "": () => 0, p: (a, b) => (b.p ?? -1) - (a.p ?? -1), name: (a, b) => a.name.localeCompare(b.name) };
  const value = (id) => byId(id).value;
  const kept = (e) => KEPT[value("show")](e) && (!value("walk") || e.walk === value("walk")) && (!value("day") || e.day === value("day"))
    && (Number(value("low")) <= 0 || (e.p ?? 0) >= Number(value("low")) / 100);
  function row(i) {
    const entry = entries[i];
    const shot = entry.thumbnail ? [element("img", { loading: "lazy", alt: "", src: entry.thumbnail })] : [];
    const words = element("span", {}, element("b", {}, entry.name), element("br"), unbroken(entry.verdict.split(": ")[0]));
    const button = element("button", { type: "button", class: entry.tone, onclick: () => select(i) }, ...shot, words);
    if (ofMap) button.style.borderLeftColor = fill(entry);
    return element("li", {}, button);
  }
  function more() {
    byId("list").append(...order.slice(listed, listed + LISTED).map(row));
    listed = Math.min(order.length, listed + LISTED);
    byId("more").hidden = listed >= order.length;
    byId("more").textContent = `show more (${listed} of ${order.length})`;
  }
  function list() {
    order = entries.map((_, i) => i).filter((i) => kept(entries[i]));
    order.sort((i, j) => SORTED[value("sort")](entries[i], entries[j]) || i - j);
    listed = 0;
    byId("list").replaceChildren();
    shown.clearLayers();
    for (const i of order) pins[i]?.addTo(shown);
    more();
  }
  byId("more").addEventListener("click", more);
  for (const id of ["walk", "day"]) {
    const names = [...new Set(entries.map((e) => e[id]).filter(Boolean))].sort();
    byId(id).append(...names.map((name) => element("option", { value: name }, name)));
    byId(id).parentElement.hidden = names.length < 2;
  }
  for (const id of ["show", "low"]) byId(id).parentElement.hidden = ofMap;
  byId("sort").querySelector("[value=p]").hidden = ofMap;
  for (const id of ["show", "walk", "day", "low", "sort"]) byId(id).addEventListener("change", () => { list(); overview(); });

  // The chosen one lies on top, and the others are faint.
  const fade = (faint) => pins.forEach((drawn) => drawn?.setStyle({ fillOpacity: faint ? 0.25 : 1, opacity: faint ? 0.25 : 1 }));
  const everywhere = () => {
    const spots = order.map((i) => entries[i].at).filter(Boolean);
    const all = spots.length ? spots : photos.map((p) => [p[0], p[1]]);
    return all.length ? L.latLngBounds(all) : L.latLngBounds([[0, 0], [1, 1]]);
  };
  const within = (id) => byId(id).contains(document.activeElement);
  function panes(detail) {
    byId("detail").hidden = !detail;
    byId("list").hidden = detail;
    byId("more").hidden = detail || listed >= order.length;
    byId("filter").hidden = detail || entries.length < 2;
  }
  function overview() {
    const back = within("detail") ? order.indexOf(current) : -1;
    current = -1;
    focus.clearLayers();
    panes(false);
    while (back >= listed) more();
    if (back >= 0) byId("list").children[back].firstChild.focus(); // what had the focus is hidden
    fade(false);
    map.fitBounds(everywhere().pad(0.15), { maxZoom: earth ? 18 : 3, animate: false });
  }

  function compare(j) {
    const entry = entries[current], match = entry.matches[j];
    chosen = j;
    const figures = [figure(entry.thumbnail, entry.name, ofMap ? entry.name : "the photo")];
    if (match) figures.push(figure(data.thumbnails[match.file], match.image, `${j + 1}. ${match.image}`));
    byId("pair").replaceChildren(...figures);
    document.querySelectorAll("#matches button").forEach((b, i) => b.setAttribute("aria-pressed", String(i === j)));
    draw(entry, j);
  }
  function draw(entry, j) {
    focus.clearLayers();
    if (!entry.at) return;
    if (entry.radius_m)
      L.circle(entry.at, { radius: entry.radius_m, color: colour("here"), weight: 2, fillOpacity: 0.08, interactive: false }).addTo(focus);
    entry.matches.forEach((match, i) => {
      L.polyline([entry.at, match.at], { color: colour("match"), weight: i === j ? 3 : 1.5, dashArray: "6 5", interactive: false }).addTo(focus);
      const icon = pin({ heading: match.heading, fill: colour("match"), size: i === j ? 7 : 5 });
      L.marker(match.at, { icon, alt: `match ${i + 1}: ${match.image}`, title: `${i + 1}. ${match.image}`, zIndexOffset: i === j ? 600 : 500 })
        .on("click", () => compare(i)).addTo(focus);
    });
    const icon = pin({ heading: entry.heading, fill: colour(ofMap ? "match" : entry.tone), size: 9 });
    L.marker(entry.at, { icon, title: `chosen: ${entry.name}`, zIndexOffset: 1000, keyboard: false }).addTo(focus);
  }
  const NEAR_M = 150; // matches this near are all in view when a photo is chosen
  function select(i) {
    const entry = entries[i];
    const onward = within("list");
    current = i;
    panes(true);
    if (onward) byId("overview").focus({ preventScroll: true });
    byId("name").textContent = entry.name;
    byId("verdict").textContent = unbroken(entry.verdict);
    byId("verdict").className = entry.tone;
    const spot = entry.at && earth ? L.latLng(entry.at).wrap() : null;
    byId("links").replaceChildren(...(spot ? PlaceMap.links(spot.lat, spot.lng) : []));
    byId("matches").replaceChildren(...entry.matches.map((match, j) => {
      const facts = element("small", {}, unbroken(match.facts.join(", ")));
      return element("li", {}, element("button", { type: "button", onclick: () => compare(j) }, `${j + 1}. ${match.image}`, facts));
    }));
    fade(true);
    compare(0);
    if (entry.at) {
      const near = entry.matches.map((m) => m.at).filter((at) => map.distance(at, entry.at) < NEAR_M);
      const bounds = L.latLngBounds([entry.at, ...near]);
      const reach = ((entry.radius_m || 30) * 1.2) / (earth ? 111320 : 1);
      bounds.extend([entry.at[0] - reach, entry.at[1] - reach]).extend([entry.at[0] + reach, entry.at[1] + reach]);
      map.fitBounds(bounds.pad(0.1), { maxZoom: earth ? 20 : 4, animate: false });
    }
    byId("detail").parentElement.scrollTop = 0; // a long list may be scrolled far down
    if (narrow()) byId("map").scrollIntoView({ block: "start" });
  }

  byId("overview").addEventListener("click", overview);
  const step = (by) => order.length && select(order[(Math.max(order.indexOf(current), by < 0 ? 0 : -1) + by + order.length) % order.length]);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("select, input") || (event.target.id === "map" && event.key.startsWith("Arrow"))) return; // moves the map
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const matches = current < 0 ? 0 : entries[current].matches.length;
    const action = {
      ArrowRight: () => step(1),
      ArrowLeft: () => step(-1),
      ...(matches ? { ArrowDown: () => compare(Math.min(chosen + 1, matches - 1)), ArrowUp: () => compare(Math.max(chosen - 1, 0)) } : {}),
      Escape: overview,
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  list();
  overview();
  if (entries.length === 1 && !ofMap) select(0);
  window.covisMap = { map, data, entries, select, overview, get current() { return current; }, get chosen() { return chosen; }, pins };
})();

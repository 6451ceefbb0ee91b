"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { earth, entries } = data;
  if (earth && data.photos.length) {
    // Photos on both sides of the antimeridian lie together: longitudes count on beyond 180 degrees.
    const middle = data.photos[0][1];
    const nearby = (at) => (at[1] -= 360 * Math.round((at[1] - middle) / 360));
    data.photos.forEach(nearby);
    for (const entry of entries) [entry, ...entry.matches].forEach((one) => one.at && nearby(one.at));
  }
  const byId = (id) => document.getElementById(id);
  const { colour, element, figure, pin } = PlaceMap;
  const map = PlaceMap.create("map", { earth, tiles: data.tiles });
  const ofMap = entries.some((e) => e.kind === "photo"); // a page of a whole map, not of answers

  const spot = (at) => `${at[0]},${at[1]}`;
  const pinned = new Set(ofMap ? entries.map((e) => spot(e.at)) : []);
  const others = data.photos.filter((p) => !pinned.has(spot(p)));
  const legend = L.control({ position: "topright" });
  legend.onAdd = () => {
    const some = (test) => entries.some(test);
    const rows = [
      ["sure", "located, confident", some((e) => e.tone === "sure")],
      ["unsure", "located, not confident", some((e) => e.tone === "unsure")],
      ["ring", "radius of its position", some((e) => e.radius_m)],
      ["match", ofMap ? "chosen photo" : "match", ofMap || some((e) => e.matches.length)],
      ["dash", "line to a match", some((e) => e.matches.length)],
      ["here", "photo with a picture", ofMap],
      ["place", "photo of the map", others.length],
      ["wedge", "heading", data.photos.some((p) => p[2] !== null)],
    ].filter((row) => row[2]);
    const lines = rows.map(([kind, label]) => element("div", {}, element("i", { class: `swatch ${kind}` }), label));
    const box = element("details", { class: "legend" }, element("summary", {}, "Legend"), ...lines);
    box.open = !narrow(); // on a phone it would hide the map
    return box;
  };
  const narrow = () => matchMedia("(max-width: 820px)").matches;
  legend.addTo(map);

  const CONE_M = 7; // of a photo's heading
  const NEAR_M = 150; // matches this near are all in view when a photo is chosen
  const cone = (at, heading, fillColor, fillOpacity) => PlaceMap.wedge(earth, at, heading, CONE_M, { fillColor, fillOpacity });

  const places = L.layerGroup().addTo(map);
  for (const [lat, lon, heading, name] of others) {
    if (heading !== null && others.length <= 4000) cone([lat, lon], heading, colour("place"), 0.4).addTo(places);
    const dot = L.circleMarker([lat, lon], { radius: 3, stroke: false, fillColor: colour("place"), fillOpacity: 0.8 });
    PlaceMap.tooltip(dot, name).addTo(places);
  }
  const pins = entries.map((entry, i) => {
    if (!entry.at) return null;
    const icon = pin({ heading: entry.heading, fill: colour(entry.tone === "none" ? "here" : entry.tone), size: 7 });
    return L.marker(entry.at, { icon, keyboard: true, alt: entry.name, title: entry.name, riseOnHover: true }).on("click", () => select(i)).addTo(map);
  });
  const focus = L.layerGroup().addTo(map);

  // The list: which entries, in which order

  let current = -1, chosen = 0, order = [];
  const KEPT = { "": () => true, sure: (e) => e.tone === "sure", unsure: (e) => e.tone === "unsure", none: (e) => e.tone === "none" };
  const SORTED = { "": () => 0, p: (a, b) => (b.p ?? -1) - (a.p ?? -1), name: (a, b) => a.name.localeCompare(b.name) };
  const rows = entries.map((entry, i) => {
    const shot = entry.thumbnail ? [element("img", { loading: "lazy", alt: "", src: entry.thumbnail })] : [];
    const words = element("span", {}, element("b", {}, entry.name), element("br"), entry.verdict.split(": ")[0]);
    return element("li", {}, element("button", { type: "button", class: entry.tone, onclick: () => select(i) }, ...shot, words));
  });
  function list() {
    order = entries.map((_, i) => i).filter((i) => KEPT[byId("show").value](entries[i]));
    order.sort((i, j) => SORTED[byId("sort").value](entries[i], entries[j]) || i - j);
    byId("list").replaceChildren(...order.map((i) => rows[i]));
    pins.forEach((marker, i) => marker && (order.includes(i) ? marker.addTo(map) : marker.remove()));
  }
  for (const id of ["show", "sort"]) byId(id).addEventListener("change", () => { list(); overview(); });
  byId("filter").hidden = ofMap || entries.length < 2;

  // The chosen one lies on top, and the others are faint.
  const mark = () => {
    rows.forEach((row, i) => row.firstChild.toggleAttribute("aria-current", i === current));
    pins.forEach((marker, i) => marker && marker.setOpacity(current < 0 || i === current ? 1 : 0.3).setZIndexOffset(i === current ? 1000 : 0));
  };
  const everywhere = () => {
    const spots = order.map((i) => entries[i].at).filter(Boolean);
    const all = spots.length ? spots : data.photos.map((p) => [p[0], p[1]]);
    return all.length ? L.latLngBounds(all) : L.latLngBounds([[0, 0], [1, 1]]);
  };
  const within = (id) => byId(id).contains(document.activeElement);
  function overview() {
    const back = within("detail") && current >= 0 && rows[current].firstChild;
    current = -1;
    focus.clearLayers();
    byId("detail").hidden = true;
    byId("list").hidden = false;
    byId("filter").hidden = ofMap || entries.length < 2;
    if (back) back.focus(); // what had the focus is hidden
    mark();
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
    if (ofMap)
      L.marker(entry.at, { icon: pin({ heading: entry.heading, fill: colour("match"), size: 9 }), title: `chosen: ${entry.name}`, zIndexOffset: 1000, keyboard: false }).addTo(focus);
    entry.matches.forEach((match, i) => {
      L.polyline([entry.at, match.at], { color: colour("match"), weight: i === j ? 3 : 1.5, dashArray: "6 5", interactive: false }).addTo(focus);
      if (match.heading !== null) cone(match.at, match.heading, colour("match"), 0.6).addTo(focus);
      L.marker(match.at, { icon: pin({ fill: colour("match"), size: i === j ? 7 : 5 }), alt: `match ${i + 1}: ${match.image}`, title: `${i + 1}. ${match.image}`, zIndexOffset: 500 })
        .on("click", () => compare(i)).addTo(focus);
    });
  }
  function select(i) {
    const entry = entries[i];
    const onward = !ofMap && within("list");
    current = i;
    byId("detail").hidden = false;
    byId("list").hidden = !ofMap;
    byId("filter").hidden = true;
    if (onward) byId("overview").focus({ preventScroll: true });
    byId("name").textContent = entry.name;
    byId("verdict").textContent = entry.verdict;
    byId("verdict").className = entry.tone;
    const place = entry.at && earth ? L.latLng(entry.at).wrap() : null;
    byId("links").replaceChildren(...(place ? PlaceMap.links(place.lat, place.lng) : []));
    byId("matches").replaceChildren(...entry.matches.map((match, j) => {
      const facts = element("small", {}, match.facts.join(", "));
      return element("li", {}, element("button", { type: "button", onclick: () => compare(j) }, `${j + 1}. ${match.image}`, facts));
    }));
    mark();
    compare(0);
    if (entry.at) {
      const near = entry.matches.map((m) => m.at).filter((at) => map.distance(at, entry.at) < NEAR_M);
      const bounds = L.latLngBounds([entry.at, ...near]);
      const reach = (entry.radius_m || 30) * 1.5 * PlaceMap.unit(earth);
      bounds.extend([entry.at[0] - reach, entry.at[1] - reach]).extend([entry.at[0] + reach, entry.at[1] + reach]);
      map.fitBounds(bounds.pad(0.1), { maxZoom: earth ? 19 : 4, animate: false });
    }
    byId("detail").parentElement.scrollTop = 0; // a long list may be scrolled far down
    if (narrow()) byId("map").scrollIntoView({ block: "start" });
  }

  byId("overview").addEventListener("click", overview);
  const step = (by) => order.length && select(order[(Math.max(order.indexOf(current), by < 0 ? 0 : -1) + by + order.length) % order.length]);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("select") || (event.target.id === "map" && event.key.startsWith("Arrow"))) return; // moves the map
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
  window.covisMap = { map, data, select, overview, get current() { return current; }, get chosen() { return chosen; }, pins };
})();

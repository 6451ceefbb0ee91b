"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (data.earth && data.photos.length) {
    // Photos on both sides of the antimeridian lie together: longitudes count on beyond 180 degrees.
    const middle = data.photos[0][1];
    const nearby = (at) => (at[1] -= 360 * Math.round((at[1] - middle) / 360));
    data.photos.forEach(nearby);
    for (const entry of data.entries) [entry, ...entry.matches].forEach((one) => one.at && nearby(one.at));
  }
  const byId = (id) => document.getElementById(id);
  const { colour, element, pin } = PlaceMap;
  const map = PlaceMap.create("map", { earth: data.earth, tiles: data.tiles });

  const spot = (at) => `${at[0]},${at[1]}`;
  const pinned = new Set(data.entries.filter((e) => e.kind === "photo").map((e) => spot(e.at)));
  const others = data.photos.filter((p) => !pinned.has(spot(p)));
  const legend = L.control({ position: "topright" });
  legend.onAdd = () => {
    const box = L.DomUtil.create("div", "legend");
    const some = (test) => data.entries.some(test);
    const photos = some((e) => e.kind === "photo");
    const rows = [
      ["sure", "located, confident", some((e) => e.tone === "sure")],
      ["unsure", "located, not confident", some((e) => e.tone === "unsure")],
      ["ring", "radius of its position", some((e) => e.radius_m)],
      ["match", photos ? "chosen photo" : "match", photos || some((e) => e.matches.length)],
      ["dash", "line to a match", some((e) => e.matches.length)],
      ["here", "photo with a picture", photos],
      ["place", "photo of the map", others.length],
      ["wedge", "heading", data.photos.some((p) => p[2] !== null)],
    ].filter((row) => row[2]);
    for (const [kind, label] of rows) {
      const line = L.DomUtil.create("div", "", box);
      const dot = L.DomUtil.create("i", kind, line);
      if (["place", "sure", "unsure", "match", "here"].includes(kind)) dot.style.background = colour(kind);
      line.append(label);
    }
    return box;
  };
  legend.addTo(map);

  const CONE_M = 7; // of a photo's heading
  const NEAR_M = 150; // matches this near are all in view when a photo is chosen
  const cone = (at, heading, fillColor, fillOpacity) => PlaceMap.wedge(data.earth, at, heading, CONE_M, { fillColor, fillOpacity });

  const places = L.layerGroup().addTo(map);
  for (const [lat, lon, heading, name] of others) {
    if (heading !== null && others.length <= 4000) cone([lat, lon], heading, colour("place"), 0.4).addTo(places);
    const dot = L.circleMarker([lat, lon], { radius: 3, stroke: false, fillColor: colour("place"), fillOpacity: 0.8 });
    PlaceMap.tooltip(dot, name).addTo(places);
  }

  const pins = data.entries.map((entry, i) => {
    if (!entry.at) return null;
    const marker = L.marker(entry.at, { icon: pin({ heading: entry.heading, fill: colour(entry.tone === "none" ? "here" : entry.tone), size: 7 }), keyboard: true, alt: entry.name, title: entry.name, riseOnHover: true });
    marker.on("click", () => select(i));
    return marker.addTo(map);
  });
  const focus = L.layerGroup().addTo(map);

  const everywhere = () => {
    const spots = data.entries.filter((e) => e.at).map((e) => e.at);
    const all = spots.length ? spots : data.photos.map((p) => [p[0], p[1]]);
    return all.length ? L.latLngBounds(all) : L.latLngBounds([[0, 0], [1, 1]]);
  };
  const within = (id) => byId(id).contains(document.activeElement);
  const overview = () => {
    const back = within("detail") && document.querySelector(`#list button[data-entry="${current}"]`);
    current = -1;
    focus.clearLayers();
    byId("detail").hidden = true;
    byId("list").hidden = false;
    if (back) back.focus(); // what had the focus is hidden
    mark();
    map.fitBounds(everywhere().pad(0.15), { maxZoom: data.earth ? 18 : 3, animate: false });
  };
  const mark = () => {
    for (const button of document.querySelectorAll("#list button"))
      button.toggleAttribute("aria-current", Number(button.dataset.entry) === current);
  };
  let current = -1;
  let chosen = 0;

  const picture = (source, name, caption) =>
    element("figure", {}, source ? element("img", { src: source, alt: name }) : element("div", { class: "gone" }, "no picture"), element("figcaption", {}, caption));
  const link = (text, address) => element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);

  const compare = (j) => {
    const entry = data.entries[current];
    chosen = j;
    const match = entry.matches[j];
    const figures = [picture(entry.thumbnail, entry.name, entry.kind === "answer" ? "the photo" : entry.name)];
    if (match) figures.push(picture(data.thumbnails[match.file], match.image, `${j + 1}. ${match.image}`));
    byId("pair").replaceChildren(...figures);
    document.querySelectorAll("#matches button").forEach((b, i) => b.setAttribute("aria-pressed", String(i === j)));
    draw(entry, j);
  };
  const draw = (entry, j) => {
    focus.clearLayers();
    if (!entry.at) return;
    if (entry.radius_m)
      L.circle(entry.at, { radius: entry.radius_m, color: colour("here"), weight: 2, fillOpacity: 0.08, interactive: false }).addTo(focus);
    if (entry.kind === "photo")
      L.marker(entry.at, { icon: pin({ heading: entry.heading, fill: colour("match"), size: 9 }), title: `chosen: ${entry.name}`, zIndexOffset: 1000, keyboard: false }).addTo(focus);
    entry.matches.forEach((match, i) => {
      L.polyline([entry.at, match.at], { color: colour("match"), weight: i === j ? 3 : 1.5, dashArray: "6 5", interactive: false }).addTo(focus);
      if (match.heading !== null) cone(match.at, match.heading, colour("match"), 0.6).addTo(focus);
      L.marker(match.at, { icon: pin({ fill: colour("match"), size: i === j ? 7 : 5 }), alt: `match ${i + 1}: ${match.image}`, title: `${i + 1}. ${match.image}` })
        .on("click", () => compare(i)).addTo(focus);
    });
  };
  const select = (i) => {
    const entry = data.entries[i];
    const onward = entry.kind === "answer" && within("list");
    current = i;
    byId("detail").hidden = false;
    byId("list").hidden = entry.kind === "answer";
    if (onward) byId("overview").focus({ preventScroll: true });
    byId("name").textContent = entry.name;
    byId("verdict").textContent = entry.verdict;
    byId("verdict").className = entry.tone;
    const links = [];
    if (entry.at && data.earth) {
      const { lat: y, lng: x } = L.latLng(entry.at).wrap();
      const [lat, lon] = [y, x].map((v) => v.toFixed(6));
      links.push(link("OpenStreetMap", `https://www.openstreetmap.org/?mlat=${lat}&mlon=${lon}#map=18/${lat}/${lon}`));
      links.push(link("geo: link", `geo:${lat},${lon}`));
    }
    byId("links").replaceChildren(...links);
    byId("matches").replaceChildren(...entry.matches.map((match, j) => {
      const facts = element("small", {}, match.facts.join(", "));
      return element("li", {}, element("button", { type: "button", onclick: () => compare(j) }, `${j + 1}. ${match.image}`, facts));
    }));
    mark();
    compare(0);
    if (entry.at) {
      const near = entry.matches.map((m) => m.at).filter((at) => map.distance(at, entry.at) < NEAR_M);
      const bounds = L.latLngBounds([entry.at, ...near]);
      const reach = (entry.radius_m || 30) * 1.5 * PlaceMap.unit(data.earth);
      bounds.extend([entry.at[0] - reach, entry.at[1] - reach]).extend([entry.at[0] + reach, entry.at[1] + reach]);
      map.fitBounds(bounds.pad(0.1), { maxZoom: data.earth ? 19 : 4, animate: false });
    }
    byId("detail").parentElement.scrollTop = 0; // a long list may be scrolled far down
    if (matchMedia("(max-width: 820px)").matches) byId("map").scrollIntoView({ block: "start" });
  };

  document.querySelectorAll("#list button").forEach((button) => button.addEventListener("click", () => select(Number(button.dataset.entry))));
  byId("overview").addEventListener("click", overview);
  const step = (by) => data.entries.length && select((current + by + data.entries.length) % data.entries.length);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("#map") && event.target.id === "map" && event.key.startsWith("Arrow")) return; // moves the map
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const matches = current < 0 ? [] : data.entries[current].matches;
    const action = {
      ArrowRight: () => step(1),
      ArrowLeft: () => step(current < 0 ? 0 : -1),
      ArrowDown: () => matches.length && compare(Math.min(chosen + 1, matches.length - 1)),
      ArrowUp: () => matches.length && compare(Math.max(chosen - 1, 0)),
      Escape: overview,
    }[event.key];
    if (!action) return;
    if (event.key.startsWith("ArrowUp") || event.key.startsWith("ArrowDown")) if (!matches.length) return;
    event.preventDefault();
    action();
  });
  overview();
  if (data.entries.length === 1 && data.entries[0].kind === "answer") select(0);
  window.covisMap = { map, data, select, overview, get current() { return current; }, get chosen() { return chosen; }, pins };
})();

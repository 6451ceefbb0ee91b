"use strict";
// Decides about suggested positions, in a file that holds everything or in a page of the service, which has and keeps it.
// Only a page of the list is drawn, and only its pictures are loaded, so that thousands of suggestions stay quick.
(async () => {
  const byId = (id) => document.getElementById(id);
  const source = byId("data") ? fileSource(JSON.parse(byId("data").textContent)) : await serverSource();
  const { data } = source;
  const { colour, element, percent, pin } = PlaceMap;
  const PAGE = 40;
  const entries = data.entries.map((entry, i) => ({ ...entry, i, decision: "", moved: null }));
  let shown = [], current = -1, moving = false;

  const map = PlaceMap.create("map", { earth: true, worldCopyJump: true, tiles: source.tiles });
  const known = L.layerGroup().addTo(map), open = L.layerGroup().addTo(map), focus = L.layerGroup().addTo(map);
  for (const at of data.dots) L.circleMarker(at, { radius: 2, stroke: false, fillColor: colour("place"), fillOpacity: 0.7, interactive: false }).addTo(known);

  const at = (entry) => entry.moved || entry.at;
  const tone = (entry) => entry.decision || (entry.at ? (entry.confident ? "sure" : "unsure") : "none");
  const paint = { accept: "sure", reject: "wrong", sure: "here", unsure: "unsure", none: "place" };
  const paints = Object.fromEntries(Object.entries(paint).map(([name, of]) => [name, colour(of)]));
  const told = (entry) => !at(entry) ? entry.note || "no suggestion"
    : entry.moved ? "pin set by hand" : `${entry.p === null ? "" : percent(entry.p) + " likely, "}by ${entry.by}`;
  const markers = entries.map(() => null);
  const mark = (entry) => {
    const where = entry.visible && at(entry);
    if (!where) { markers[entry.i]?.remove(); return; }
    const marker = (markers[entry.i] ||= L.circleMarker(where, { radius: 5, weight: 1, color: "#fff", fillOpacity: 0.9 }).on("click", () => select(shown.indexOf(entry))));
    marker.setLatLng(where).setStyle({ fillColor: paints[tone(entry)] }).addTo(open);
  };

  const picture = (name) => {
    const image = element("img", { alt: name });
    source.picture(name).then((address) => (address ? (image.src = address) : image.replaceWith(element("span", { class: "gone" }, "no picture"))));
    return image;
  };
  const figure = (name, caption) => element("figure", {}, picture(name), element("figcaption", {}, caption));

  function list() {
    const page = Math.max(0, Math.floor(current / PAGE));
    const rows = shown.slice(page * PAGE, (page + 1) * PAGE).map((entry, k) => {
      const j = page * PAGE + k;
      const button = element("button", { type: "button", class: tone(entry), onclick: () => select(j) }, picture(entry.photo), element("span", {}, element("b", {}, entry.photo), element("br"), entry.decision ? `${entry.decision}ed; ${told(entry)}` : told(entry)));
      if (j === current) button.setAttribute("aria-current", "true");
      return element("li", {}, button);
    });
    byId("list").replaceChildren(...rows);
    byId("before").disabled = page === 0;
    byId("after").disabled = (page + 1) * PAGE >= shown.length;
    const tally = (what) => entries.filter((e) => e.decision === what).length;
    byId("count").textContent = `${shown.length} shown; ${tally("accept")} accepted, ${tally("reject")} rejected of ${entries.length}`;
  }

  function detail() {
    focus.clearLayers();
    const entry = shown[current];
    byId("detail").hidden = !entry;
    if (!entry) return;
    byId("name").textContent = entry.photo;
    byId("verdict").textContent = [entry.day, told(entry), entry.note].filter(Boolean).join("; ");
    byId("pair").replaceChildren(figure(entry.photo, "this photo"), ...entry.evidence.map((e) => figure(e.image, `${e.fact}: ${e.image}`)));
    for (const [id, what] of [["accept", "accept"], ["reject", "reject"], ["undecide", ""]]) byId(id).setAttribute("aria-pressed", String(entry.decision === what));
    byId("accept").disabled = !at(entry);
    byId("reset").disabled = !entry.moved;
    for (const e of entry.evidence) if (e.at && at(entry)) L.polyline([at(entry), e.at], { color: colour("match"), weight: 2, dashArray: "6 5", interactive: false }).addTo(focus);
    if (!at(entry)) return;
    L.marker(at(entry), { draggable: true, autoPan: true, keyboard: false, zIndexOffset: 1000, title: "drag to move", icon: pin({ fill: colour("match"), size: 9 }) })
      .on("dragend", (event) => move(event.target.getLatLng())).addTo(focus);
  }

  function select(j, { pan = true } = {}) {
    current = Math.min(Math.max(j, 0), shown.length - 1);
    list();
    detail();
    const entry = shown[current];
    if (pan && entry && at(entry)) map.setView(at(entry), Math.max(map.getZoom(), 16), { animate: false });
    const row = document.querySelector("#list [aria-current]")?.parentElement, box = byId("list");
    if (row) box.scrollTop = Math.max(Math.min(box.scrollTop, row.offsetTop), row.offsetTop + row.offsetHeight - box.clientHeight);
  }

  function decide(what, onward = true) {
    const entry = shown[current];
    if (!entry || (what === "accept" && !at(entry))) return;
    entry.decision = what;
    mark(entry);
    select(current + (onward && what && current < shown.length - 1 ? 1 : 0));
  }

  function move(where) {
    const entry = shown[current];
    if (!entry) return;
    const { lat, lng } = (where.wrap ? where : L.latLng(where)).wrap();
    entry.moved = [Math.min(90, Math.max(-90, lat)), lng];
    entry.decision = "accept";
    mark(entry);
    select(current, { pan: false });
  }

  function filter() {
    const value = (id) => byId(id).value;
    const low = Number(value("low")) / 100, high = Number(value("high")) / 100;
    shown = entries.filter((e) => (e.visible = (!value("album") || e.album === value("album")) && (!value("from") || e.day >= value("from"))
      && (!value("to") || (e.day && e.day <= value("to"))) && (e.p ?? 0) >= low && (e.p ?? 0) <= high
      && (!value("state") || (value("state") === "open" ? !e.decision : e.decision === value("state")))));
    entries.forEach(mark);
    current = -1;
    list();
    detail();
    const places = shown.map(at).filter(Boolean);
    const all = places.length ? places : data.dots;
    if (all.length) map.fitBounds(L.latLngBounds(all).pad(0.1), { maxZoom: 16, animate: false });
    else map.setView([0, 0], 2);
  }

  const decisions = () => entries.filter((e) => e.decision).map((e) => ({ photo: e.photo, key: e.key, decision: e.decision, ...(e.decision === "accept" ? { lat: at(e)[0], lon: at(e)[1] } : {}) }));
  let saved = "";
  async function save() {
    const made = decisions();
    try {
      byId("status").textContent = await source.save({ format: data.format, library: data.library, decisions: made });
      saved = JSON.stringify(made);
    } catch (error) {
      byId("status").textContent = `not saved: ${error.message}`;
    }
  }

  function acceptAll() {
    const least = Number(byId("low").value) / 100 || data.precision;
    for (const entry of shown) if (!entry.decision && entry.at && (entry.p ?? 0) >= least) entry.decision = "accept";
    entries.forEach(mark);
    select(current, { pan: false });
  }

  for (const album of [...new Set(entries.map((e) => e.album))].sort()) if (album) byId("album").append(element("option", { value: album }, album));
  for (const id of ["album", "from", "to", "low", "high", "state"]) byId(id).addEventListener("change", filter);
  byId("bar").addEventListener("submit", (event) => event.preventDefault());
  const acts = { accept: () => decide("accept"), reject: () => decide("reject"), undecide: () => decide(""), save, all: acceptAll,
    clear: () => { shown.forEach((e) => (e.decision = "")); entries.forEach(mark); select(current, { pan: false }); },
    reset: () => { const entry = shown[current]; if (entry) { entry.moved = null; if (!entry.at) entry.decision = ""; mark(entry); select(current); } },
    before: () => select((Math.floor(current / PAGE) - 1) * PAGE), after: () => select((Math.max(0, Math.floor(current / PAGE)) + 1) * PAGE) };
  for (const [id, act] of Object.entries(acts)) byId(id).addEventListener("click", act);
  map.on("click", (event) => { if (moving) { moving = false; byId("map").classList.remove("moving"); move(event.latlng); } });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, dialog, #map")) return;
    const act = { a: acts.accept, r: acts.reject, u: acts.undecide, s: save, 0: acts.reset, ArrowRight: () => select(current + 1), ArrowLeft: () => select(current - 1),
      m: () => { moving = true; byId("map").classList.add("moving"); } }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  addEventListener("beforeunload", (event) => { if (JSON.stringify(decisions()) !== saved) event.preventDefault(); });
  const before = new Map((data.decisions || []).map((decided) => [decided.key + decided.photo, decided]));
  for (const entry of entries) {
    const decided = before.get(entry.key + entry.photo);
    if (!decided) continue;
    entry.decision = decided.decision;
    if (decided.lat !== undefined && (!entry.at || Math.max(Math.abs(decided.lat - entry.at[0]), Math.abs(decided.lon - entry.at[1])) > 1e-6)) entry.moved = [decided.lat, decided.lon];
  }
  saved = JSON.stringify(decisions());
  const located = entries.filter((e) => e.at).length;
  byId("lead").textContent = `${entries.length} photos without a position, ${located} suggestions, ${entries.filter((e) => e.confident).length} of them confident. Nothing is written by this page.`;
  filter();
  window.covisReview = { entries, select, decide, move, map, get shown() { return shown; }, get current() { return current; } };

  function fileSource(data) {
    const download = async (record) => {
      const link = element("a", { href: URL.createObjectURL(new Blob([JSON.stringify(record, null, 1)], { type: "application/json" })), download: "decisions.json" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      return `${record.decisions.length} decisions saved as decisions.json`;
    };
    return { data, tiles: data.tiles, picture: async (name) => data.thumbnails[name], save: download };
  }

  async function serverSource() {
    const path = (name) => `v1/maps/${encodeURIComponent(name)}/review`;
    const streets = { ...byId("map").dataset }, pictures = new Map();
    try {
      const map = new URLSearchParams(location.search).get("map") || (await (await CovisServer.call("v1/maps")).json()).maps[0].name;
      const data = await (await CovisServer.call(path(map))).json();
      const load = (name) => CovisServer.call(`${path(map)}/pictures/${name.split("/").map(encodeURIComponent).join("/")}?missing=ok`).then(async (r) => (r.status === 204 ? "" : URL.createObjectURL(await r.blob()))).catch(() => "");
      const picture = (name) => pictures.get(name) || pictures.set(name, load(name)).get(name);
      const put = (record) => CovisServer.call(`${path(map)}/decisions`, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(record) });
      return { data, tiles: streets.address ? streets : null, picture, save: async (record) => `${(await (await put(record)).json()).saved} decisions saved` };
    } catch (error) {
      byId("lead").textContent = error.message;
      throw error;
    }
  }
})();

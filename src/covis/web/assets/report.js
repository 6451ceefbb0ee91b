"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const { colour, copy, element, figure } = PlaceMap;

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      button.dataset.copied = button.dataset.words;
      await copy(button.dataset.words);
      button.classList.add("on");
      setTimeout(() => button.classList.remove("on"), 900);
    });
  }

  // The map of correct and wrong queries, linked to the gallery
  const { queries, places, models, thumbs, gallery: step } = data.map;
  const byId = (id) => document.getElementById(id);
  const map = PlaceMap.create("query-map", { earth: false, keyboard: false, scrollWheelZoom: false });
  const dots = L.layerGroup().addTo(map);
  const focus = L.layerGroup().addTo(map);
  let model = 0, chosen = -1, order = [], shown = 0;
  const answer = (i) => models[model].answers[i];
  const at = (i) => [queries[i].y, queries[i].x];
  const kind = (a) => (a.right ? "right" : "wrong");
  const ink = (a) => colour(a.right ? "sure" : "wrong");

  function draw() {
    dots.clearLayers();
    for (const [x, y] of places) L.circleMarker([y, x], { radius: 1.5, stroke: false, fillColor: colour("place"), fillOpacity: 1, interactive: false }).addTo(dots);
    queries.forEach((_, i) => {
      const a = answer(i);
      L.circleMarker(at(i), { radius: queries.length > 400 ? 4 : 5, color: ink(a), weight: 2, fillColor: ink(a), fillOpacity: a.right ? 0.8 : 0 })
        .on("mouseover", () => show(i)).on("click", () => pick(i, true)).addTo(dots);
    });
  }
  // only some photos are in the page
  const shot = (source, text, kind, name = "") => figure(source, text + (name && `: ${name}`), text, kind);
  const rank = (a, none) => (a.rank ? `first correct match at rank ${a.rank}` : none);
  function show(i) {
    chosen = i;
    focus.clearLayers();
    if (i < 0) {
      byId("look").replaceChildren(element("p", { class: "hint" }, "Hover over a query on the map to see it and its best match; click a wrong one to find it in the gallery."));
      return;
    }
    const q = queries[i], a = answer(i);
    L.circleMarker(at(i), { radius: 9, color: ink(a), weight: 3, fill: false, interactive: false }).addTo(focus);
    if (a.x !== null) L.polyline([at(i), [a.y, a.x]], { color: ink(a), weight: 2, interactive: false }).addTo(focus);
    const facts = [` ${q.name} → ${a.name}`, ...(a.metres === null ? [] : [`${a.metres} m apart`]), `descriptor distance ${a.distance}`, rank(a, "no correct match found")];
    byId("look").replaceChildren(
      element("div", { class: "shots" }, shot(thumbs[`q${q.id}`], "query", "", q.name), shot(thumbs[`m${a.id}`], "best match", kind(a), a.name)),
      element("p", {}, element("b", { class: `${kind(a)}-ink` }, a.right ? "correct" : "wrong"), facts.join(", ")));
  }
  function entryOf(i) {
    const q = queries[i], a = answer(i);
    const shots = [shot(thumbs[`q${q.id}`], "query", "", q.name), shot(thumbs[`m${a.id}`], "best match", "wrong", a.name), shot(thumbs[`m${a.truth}`], "correct match", "right")];
    const facts = [...(a.metres === null ? [] : [`${a.metres} m away`]), `distance ${a.distance}`, rank(a, "correct match not retrieved")];
    return element("button", { class: "entry", type: "button", id: `entry-${q.id}`, "aria-label": `wrong query ${q.name}, matched with ${a.name}`, onclick: () => pick(i, false) },
      element("div", { class: "shots" }, ...shots), element("p", {}, `${q.name}: ${facts.join(", ")}`));
  }
  function grow(to) {
    byId("gallery-entries").append(...order.slice(shown, to).map(entryOf));
    shown = Math.max(shown, Math.min(to, order.length));
    byId("gallery-more").hidden = shown >= order.length;
    byId("gallery-more").textContent = `show more (${shown} of ${order.length})`;
  }
  function pick(i, scroll) {
    show(i);
    document.querySelectorAll(".entry.chosen").forEach((entry) => entry.classList.remove("chosen"));
    if (order.includes(i)) grow(order.indexOf(i) + 1);
    const entry = i >= 0 && byId(`entry-${queries[i].id}`);
    if (!entry) return;
    entry.classList.add("chosen");
    if (scroll) entry.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }
  function choose(k) {
    model = k;
    [...byId("map-models").children].forEach((button, j) => button.classList.toggle("on", j === k));
    byId("gallery-entries").replaceChildren();
    shown = 0;
    order = queries.map((_, i) => i).filter((i) => !answer(i).right).sort((i, j) => answer(j).worst - answer(i).worst);
    grow(step);
    draw();
    pick(chosen, false);
  }

  byId("map-models").append(...models.map((m, k) => {
    const right = m.answers.filter((a) => a.right).length;
    return element("button", { type: "button", onclick: () => choose(k) }, `${m.name} (${right} correct of ${m.answers.length})`);
  }));
  byId("gallery-more").addEventListener("click", () => grow(shown + step));
  byId("query-map").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], n = queries.length;
    if (by) { event.preventDefault(); show(((chosen < 0 && by < 0 ? 0 : chosen) + by + n) % n); }
    if (event.key === "Enter" && chosen >= 0) pick(chosen, true);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const corners = [...queries.map((_, i) => at(i)), ...places.map(([x, y]) => [y, x])];
  map.fitBounds(corners.length ? L.latLngBounds(corners) : [[0, 0], [1, 1]], { padding: [15, 15], animate: false });
  choose(models.length - 1);
  window.covisReport = { data: data.map, map, answer, at };
})();

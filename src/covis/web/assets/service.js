"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const state = { maps: [], map: null, plane: null, files: [], answers: null, area: null, drawing: null, view: "answers", pictures: new Map() };
  const { colour, element: make, percent } = PlaceMap;
  const { call } = CovisServer;

  const base = () => `v1/maps/${encodeURIComponent(state.map.name)}`;
  async function picture(image, size) {
    const path = `${base()}/thumbnails/${image.split("/").map(encodeURIComponent).join("/")}?size=${size}`;
    if (!state.pictures.has(path)) {
      if (state.pictures.size > 300) {
        const [oldest] = state.pictures.keys();
        state.pictures.get(oldest).then(({ url }) => url && URL.revokeObjectURL(url));
        state.pictures.delete(oldest);
      }
      state.pictures.set(path, call(`${path}&missing=ok`).then(async (r) => (r.status === 204 ? { why: r.headers.get("X-Covis-Reason") } : { url: URL.createObjectURL(await r.blob()) })).catch((error) => ({ why: error.message })));
    }
    const result = await state.pictures.get(path);
    if (!result.url) hint(result.why);
    return result;
  }
  const WHY = {
    "not-shown": "The server may not show the folder that some photos of this map lie in. Whoever runs it can allow that: covis serve MAP --pictures FOLDER.",
    missing: "Some photos of this map are no longer where they were when it was made, or came without their files; answers are the same without them. Start the server where they lie: covis serve MAP --pictures FOLDER.",
  };
  function hint(why) {
    $("hint").textContent = WHY[why] || `Some photos of this map cannot be shown (${why || "no reason given"}).`;
    $("hint").hidden = false;
  }
  const gone = (why) => make("span", { class: "gone", title: WHY[why] || why }, "no picture");

  // Elements

  function say(text, bad = false) {
    $("status").textContent = text;
    $("status").classList.toggle("bad", bad);
  }

  // The plane: a grid that scales with the map, and layers on it

  function openPlane() {
    if (state.plane) state.plane.remove();
    const earth = state.map.on_earth;
    state.plane = PlaceMap.create("map", { earth, tiles: $("map").dataset.address ? $("map").dataset : null, doubleClickZoom: false });
    state.layers = { photos: L.layerGroup(), answers: L.layerGroup(), chosen: L.layerGroup(), area: L.layerGroup() };
    for (const layer of Object.values(state.layers)) layer.addTo(state.plane);
    showAll();
    state.plane.on("click", (event) => state.drawing && corner(event.latlng));
  }
  function showAll() {
    const [west, south, east, north] = state.map.bounds || [-1, -1, 1, 1];
    state.plane.fitBounds([[south, west], [north, east]], { padding: [30, 30], maxZoom: state.map.on_earth ? 19 : 4, animate: false });
  }
  const spot = (place) => (state.map.on_earth ? [place.lat, place.lon] : [place.northing, place.easting]);
  function radius(place, metres, style) {
    // On a plane in metres a unit is a metre; on Earth Leaflet's circle takes metres itself.
    return L.circle(spot(place), { radius: metres, interactive: false, ...style });
  }

  // The map's own photos

  async function loadPhotos() {
    const map = state.map;
    const groups = new Map();
    state.photos = [];
    for (let offset = 0; offset !== null && offset < 20000;) {
      const page = await (await call(`${base()}/photos?limit=1000&offset=${offset}`)).json();
      if (state.map !== map) return;
      for (const photo of page.photos) {
        const group = groups.get(photo.group) ?? groups.set(photo.group, groups.size).get(photo.group);
        const dot = PlaceMap.place(spot(photo), { heading: photo.heading, radius: 3.5, group }).on("click", () => showPhoto(photo));
        PlaceMap.tooltip(dot, photo.image).addTo(state.layers.photos);
      }
      state.photos.push(...page.photos);
      offset = page.next;
    }
    paint();
    raise(state.layers.chosen);
    showGallery(0);
  }
  // By walk where they are looked at, and plain below answers.
  const paint = () => state.layers.photos.eachLayer((dot) => dot.setStyle({ fillColor: state.view === "photos" ? PlaceMap.groupColour(dot.options.group) : colour("place"), fillOpacity: state.view === "photos" ? 0.9 : 0.6 }));
  const SHOWN = 60;  // photos of the gallery at a time
  function showGallery(from) {
    const cells = state.photos.slice(from, from + SHOWN).map((photo) => {
      const button = make("button", { type: "button", onclick: () => { state.plane.setView(spot(photo), state.map.on_earth ? 19 : 3); showPhoto(photo); } }, make("span", { class: "gone" }, "…"), make("span", { class: "name", title: photo.image }, photo.image.split("/").pop()));
      return make("li", {}, button);
    });
    if (from === 0) $("gallery").replaceChildren();
    $("gallery").append(...cells);
    $("more").hidden = from + SHOWN >= state.photos.length;
    $("more").onclick = () => showGallery(from + SHOWN);
    const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
      seen.unobserve(target);
      const photo = state.photos[from + cells.indexOf(target)];
      picture(photo.image, 160).then(({ url, why }) => target.querySelector(".gone").replaceWith(url ? make("img", { src: url, alt: "" }) : gone(why)));
    }));
    cells.forEach((cell) => seen.observe(cell));
  }
  const raise = (layer) => layer.eachLayer((drawn) => drawn.bringToFront && drawn.bringToFront());
  async function showPhoto(photo) {
    if (state.drawing) return;
    const body = make("div", {}, make("strong", {}, photo.image));
    const popup = L.popup({ minWidth: 180 }).setLatLng(spot(photo)).setContent(body).openOn(state.plane);
    const { url, why } = await picture(photo.image, 320);
    body.prepend(url ? make("img", { src: url, alt: `photo ${photo.image}`, width: 180 }) : gone(why));
    popup.update();
  }
  // Asking

  const question = (form) => {
    form.append("map", state.map.name);
    form.append("k", $("k").value || "5");
    if ($("walk").checked) form.append("sequence", "true");
    if (state.area) form.append("inside", state.area.map(([y, x]) => `${y},${x}`).join(" "));
    return form;
  };
  // Corners are LAT,LON on Earth, but X,Y on a plane in metres.
  const swapped = () => state.area && !state.map.on_earth;
  function body() {
    const form = new FormData();
    for (const file of state.files) form.append("photo", file, file.name);
    const area = state.area;
    if (swapped()) state.area = area.map(([y, x]) => [x, y]);
    question(form);
    state.area = area;
    return form;
  }
  async function ask(files) {
    const chosen = [...files].filter((file) => file.type.startsWith("image/") || /\.(jpe?g|png|webp|tiff?|heic|bmp|gif)$/i.test(file.name));
    if (!chosen.length) { say("None of these is a photo; drop image files.", true); return; }
    const turn = (state.turn = (state.turn || 0) + 1);
    state.files = chosen;
    if (!state.map) { say("Waiting for the list of maps …"); return; }  // openMap asks then
    setView("answers");
    say(`Asking about ${chosen.length === 1 ? chosen[0].name : `${chosen.length} photos`} …`);
    $("answers").setAttribute("aria-busy", "true");
    try {
      const answers = await (await call("v1/locate", { method: "POST", body: body(), headers: { Accept: "application/json" } })).json();
      if (turn !== state.turn) return;
      state.answers = answers;
      showAnswers();
    } catch (error) {
      if (turn === state.turn) say(error.message, true);
    } finally {
      if (turn === state.turn) $("answers").removeAttribute("aria-busy");
    }
  }
  const again = () => state.files.length && ask(state.files);

  function promise(facts) {
    if (!facts?.calibrated && !facts?.typical) return "not calibrated, so answers have no probability";
    if (!facts.threshold) return "it promises nothing, so no answer is called confident";
    const elsewhere = facts.confident_elsewhere === null ? "" : `, ${(100 * facts.confident_elsewhere).toFixed(1)}\u00a0% of photos from elsewhere`;
    return `${percent(facts.precision)} of confident answers are right (${percent(facts.confident)} of photos of its places get one${elsewhere})`;
  }
  const absent = (answer) => Math.round(100 * answer.elsewhere) > 50;
  // The words of the command line: what is known, then why it is not surer.
  function verdict(answer) {
    const [lead, ...doubt] = answer.verdict.replaceAll(" %", "\u00a0%").split("; ");
    return { text: lead, doubt: doubt.join("; "), sure: answer.confident };
  }
  function showAnswers() {
    state.layers.answers.clearLayers();
    state.layers.chosen.clearLayers();
    state.pins = [];
    state.urls?.forEach(URL.revokeObjectURL);
    state.urls = state.files.map((file) => URL.createObjectURL(file));
    const cards = state.answers.answers.map(card);
    $("answers").replaceChildren(...cards);
    $("downloads").hidden = false;
    for (const button of $("downloads").querySelectorAll("button")) button.disabled = !state.map.on_earth && button.dataset.format.startsWith("geo");
    const placed = state.answers.answers.filter((answer) => answer.position && !absent(answer));
    const sure = placed.filter((answer) => answer.confident).length;
    const walk = state.answers.walk ? ` The walk: ${percent(state.answers.walk.agreement)} of its photos agree${state.answers.walk.note ? ` (${state.answers.walk.note})` : ""}.` : "";
    say(`${placed.length} of ${cards.length} located, ${sure} of them confident.${walk}`);
    if (state.answers.walk && placed.length > 1) L.polyline(placed.map((answer) => spot(answer.position)), { color: colour("here"), weight: 2, dashArray: "6 5", interactive: false }).addTo(state.layers.answers);
    const first = state.answers.answers.findIndex((answer) => answer.position && !absent(answer));
    if (first >= 0) choose(first, true);
    if (matchMedia("(max-width: 820px)").matches) $("answer-0").scrollIntoView(); // below the map, which stays in view
  }
  function card(answer, number) {
    const judged = verdict(answer), place = absent(answer) ? null : answer.position;
    const head = make("button", { type: "button", class: "head", onclick: () => place && choose(number, true) },
      make("img", { src: state.urls[number], alt: "" }),
      make("span", {}, make("span", { class: `verdict ${judged.sure ? "sure" : "unsure"}` }, judged.text), make("span", { class: "small" }, answer.photo),
        make("span", { class: "small" }, judged.doubt)));
    const matches = answer.matches.map((match, rank) => matchCell(answer, number, match, rank));
    const links = place && state.map.on_earth ? [make("p", { class: "links" }, ...PlaceMap.links(place.lat, place.lon))] : [];
    if (place) pins(answer, number);
    return make("article", { class: "answer", id: `answer-${number}`, "aria-label": answer.photo }, head, ...links, make("ol", { class: "matches", "aria-label": "matches", tabindex: "0" }, ...matches));
  }
  const facts = (match) => [
    ...(match.overlap === null ? [] : [`overlap ${percent(match.overlap)}`]),
    ...(match.probability === null ? [] : [`${percent(match.probability)} likely correct`]),
    `distance ${match.distance.toFixed(3)}`,
  ];
  function matchCell(answer, number, match, rank) {
    const hole = make("span", { class: "gone" }, "…");
    const name = make("span", { class: "name", title: match.image }, `${rank + 1}. ${match.image.split("/").pop()}`);
    const button = make("button", { type: "button", onclick: () => compare(answer, number, match) }, hole, name, ...facts(match).slice(0, 2).map((text) => make("span", {}, text)));
    picture(match.image, 160).then(({ url, why }) => hole.replaceWith(url ? make("img", { src: url, alt: "" }) : gone(why)));
    return make("li", {}, button);
  }
  function pins(answer, number) {
    const place = answer.position;
    const icon = PlaceMap.pin({ heading: place.heading, fill: colour("here"), size: 10, label: number + 1 });
    state.pins[number] = L.marker(spot(place), { icon, alt: `${answer.photo}: ${verdict(answer).text}`, title: answer.photo, zIndexOffset: 1000 }).on("click", () => choose(number, false)).addTo(state.layers.answers);
  }
  // The radius and the matches of the chosen photo alone, and the others faint: all of them would hide the map.
  function choose(number, move) {
    document.querySelectorAll(".answer").forEach((element) => element.classList.toggle("chosen", element.id === `answer-${number}`));
    state.pins.forEach((pin, i) => pin.setOpacity(i === number ? 1 : 0.4).setZIndexOffset(i === number ? 2000 : 1000));
    const answer = state.answers.answers[number], place = answer.position, layer = state.layers.chosen.clearLayers();
    if (place.radius_m) radius(place, place.radius_m, { color: colour("here"), weight: 1, fillOpacity: 0.06 }).addTo(layer);
    for (const match of answer.matches) {
      L.polyline([spot(place), spot(match)], { color: colour("match"), weight: 1.5, dashArray: "6 5", interactive: false }).addTo(layer);
      const dot = PlaceMap.place(spot(match), { heading: match.heading, radius: 6, stroke: true, color: "#fff", weight: 1, fillOpacity: 1, fillColor: colour("match") });
      PlaceMap.tooltip(dot, match.image).on("click", () => compare(answer, number, match)).addTo(layer);
    }
    if (move) state.plane.fitBounds(L.latLngBounds([spot(place), ...answer.matches.map(spot)]), { padding: [50, 50], maxZoom: state.map.on_earth ? 19 : 3, animate: false });
    else $(`answer-${number}`).scrollIntoView({ block: "nearest" });
  }
  async function compare(answer, number, match) {
    $("left").src = state.urls[number]; $("left").alt = `the photo ${answer.photo}`;
    $("left-text").textContent = answer.photo;
    $("right").removeAttribute("src"); $("right").alt = `the match ${match.image}`;
    $("right-text").textContent = [match.image, ...facts(match)].join(" · ");
    $("compare").showModal();
    const { url } = await picture(match.image, 1024);
    if (url) $("right").src = url;
  }

  // Downloads

  const TYPES = { json: "application/json", geojson: "application/geo+json", geopose: "application/geopose+json" };
  const cell = (value) => { const text = String(value ?? ""); return /^[=+\-@\t]/.test(text) && isNaN(text) ? `"'${text.replaceAll('"', '""')}"` : `"${text.replaceAll('"', '""')}"`; };
  function csv() {
    const head = ["photo", "confident", "probability", "elsewhere", "lat", "lon", "easting", "northing", "heading", "radius_m", "match", "note"];
    const at = (a, key) => (absent(a) ? null : a.position?.[key]);
    const rows = state.answers.answers.map((a) => [a.photo, a.confident, a.probability, a.elsewhere, ...["lat", "lon", "easting", "northing", "heading", "radius_m"].map((key) => at(a, key)), a.matches[0]?.image, a.note]);
    return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  }
  async function download(format) {
    let content;
    if (format === "csv") content = new Blob([csv()], { type: "text/csv" });
    else if (format === "json") content = new Blob([JSON.stringify(state.answers, null, 1)], { type: TYPES.json });
    else content = await (await call("v1/locate", { method: "POST", body: body(), headers: { Accept: TYPES[format] } })).blob();
    const url = URL.createObjectURL(content);
    const link = make("a", { href: url, download: `answers.${format === "geopose" ? "geopose.json" : format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // The area

  function drawArea() {
    state.layers.area.clearLayers();
    const corners = state.drawing || state.area;
    if (!corners) return;
    const style = { color: colour("here"), weight: 2, dashArray: "4 4", fillOpacity: 0.06, interactive: false };
    if (corners.length > 2) L.polygon(corners, style).addTo(state.layers.area);
    else if (corners.length) L.polyline(corners, style).addTo(state.layers.area);
    for (const at of corners) L.circleMarker(at, { radius: 4, color: colour("here"), interactive: false }).addTo(state.layers.area);
  }
  function corner(at) { state.drawing.push([at.lat, at.lng]); drawArea(); $("draw").disabled = state.drawing.length < 3; }
  function toggleDrawing() {
    if (state.drawing) {
      state.area = state.drawing.length > 2 ? state.drawing : null;
      state.drawing = null;
      $("draw").textContent = "Draw an area";
      $("draw").classList.remove("on");
      $("draw").disabled = false;
      $("clear").disabled = !state.area;
      drawArea();
      again();
    } else {
      state.drawing = [];
      state.area = null;
      $("draw").textContent = "Finish area";
      $("draw").classList.add("on");
      $("draw").disabled = true;
      $("clear").disabled = false;
      say("Click the corners of the area on the map, then finish it.");
      drawArea();
    }
  }
  function clearArea() {
    const had = state.area;
    state.area = state.drawing = null;
    $("draw").textContent = "Draw an area"; $("draw").disabled = false; $("draw").classList.remove("on"); $("clear").disabled = true;
    say("");
    drawArea();
    if (had) again();
  }

  // Views

  function setView(view) {
    state.view = view;
    for (const name of ["answers", "photos"]) $(`view-${name}`).setAttribute("aria-pressed", String(name === view));
    $("ask").hidden = $("answers").hidden = view !== "answers";
    $("downloads").hidden = view !== "answers" || !state.answers;
    $("photos").hidden = view !== "photos";
    if (!state.plane) return;
    for (const name of ["answers", "chosen", "area"]) {
      if (view === "answers") state.layers[name].addTo(state.plane); else state.layers[name].remove();
    }
    const mark = (kind, text) => { const span = make("span", {}); span.append(make("i", { class: `swatch ${kind}` }), text); return span; };
    $("legend").replaceChildren(...(view === "answers" ? [mark("here", "your photo, with its radius"), mark("match", "matches"), mark("place", "photos of the map")] : [mark("wedge", "photos and where they look, one colour per walk")]));
    paint();
    if (view === "photos") { say(`${state.map.photos} photos of ${state.map.groups} walks`); showAll(); }
  }
  function openMap(name) {
    state.map = state.maps.find((map) => map.name === name);
    state.answers = null; state.area = null; state.drawing = null;
    $("answers").replaceChildren();
    $("hint").hidden = true;
    openPlane();
    setView(state.view);
    if (state.files.length) again();
    else say(`${state.map.photos} photos, version ${state.map.version}; ${promise(state.map.calibration)}`);
    loadPhotos().catch((error) => say(error.message, true));
  }

  // Wiring

  const drop = $("drop");
  for (const target of [drop, $("map-panel")]) {
    target.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    target.addEventListener("dragleave", () => drop.classList.remove("over"));
    target.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); ask(event.dataTransfer.files); });
  }
  $("files").addEventListener("change", () => ask($("files").files));
  $("k").addEventListener("change", again);
  $("walk").addEventListener("change", again);
  $("draw").addEventListener("click", toggleDrawing);
  $("clear").addEventListener("click", clearArea);
  $("view-answers").addEventListener("click", () => setView("answers"));
  $("view-photos").addEventListener("click", () => setView("photos"));
  $("downloads").addEventListener("click", (event) => event.target.dataset.format && download(event.target.dataset.format).catch((error) => say(error.message, true)));
  $("map-name").addEventListener("change", () => openMap($("map-name").value));
  async function start() {
    state.maps = (await (await call("v1/maps")).json()).maps;
    $("map-name").replaceChildren(...state.maps.map((map) => make("option", { value: map.name }, map.name)));
    openMap(state.maps[0].name);
    window.covisReady = true;
  }
  start().catch((error) => say(error.message, true));
  window.covisPage = state;
})();

"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);

// Tables, copied as text

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const words = button.dataset.words;
    button.dataset.copied = words;
    await copy(words);
    button.classList.add("on");
    setTimeout(() => button.classList.remove("on"), 900);
  });
}

async function copy(words) {
  try { await navigator.clipboard.writeText(words); } catch { // a page opened from a file may be refused
    const area = document.createElement("textarea");
    area.value = words; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
}

// The map of right and wrong queries, linked to the gallery

if (DATA.map) startMap(DATA.map);

function startMap(map) {
  const canvas = document.getElementById("map-canvas"), look = document.getElementById("look"), gallery = document.getElementById("gallery-entries");
  const pen = canvas.getContext("2d");
  let model = 0, chosen = -1;
  const xs = map.queries.map(q => q.x).concat(map.places.map(p => p[0])), ys = map.queries.map(q => q.y).concat(map.places.map(p => p[1]));
  const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];

  function project(x, y) {
    const w = canvas.width, h = canvas.height, pad = 18 * devicePixelRatio;
    const scale = Math.min((w - 2 * pad) / Math.max(1, box[2] - box[0]), (h - 2 * pad) / Math.max(1, box[3] - box[1]));
    return [pad + (x - box[0]) * scale + (w - 2 * pad - (box[2] - box[0]) * scale) / 2, h - pad - (y - box[1]) * scale - (h - 2 * pad - (box[3] - box[1]) * scale) / 2];
  }
  function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function answer(i) { return map.models[model].answers[i]; }

  function draw() {
    const width = canvas.clientWidth || 460;
    canvas.width = width * devicePixelRatio;
    canvas.height = width * 0.8 * devicePixelRatio;
    pen.fillStyle = ink("--soft");
    for (const [x, y] of map.places) { const [px, py] = project(x, y); pen.fillRect(px - 1, py - 1, 2, 2); }
    pen.globalAlpha = 0.8;
    map.queries.forEach((q, i) => {
      const [px, py] = project(q.x, q.y), a = answer(i), r = (i === chosen ? 7 : map.queries.length > 400 ? 3 : 4) * devicePixelRatio;
      pen.strokeStyle = pen.fillStyle = ink(a.right ? "--right" : "--wrong");
      if (i === chosen && a.x !== null) { const [mx, my] = project(a.x, a.y); pen.lineWidth = 2 * devicePixelRatio; pen.beginPath(); pen.moveTo(px, py); pen.lineTo(mx, my); pen.stroke(); }
      pen.beginPath();
      if (a.right) pen.arc(px, py, r, 0, 7); else { pen.moveTo(px - r, py - r); pen.lineTo(px + r, py - r); pen.lineTo(px, py + r); }
      pen.fill();
    });
    pen.globalAlpha = 1;
  }
  function nearest(event) {
    const rect = canvas.getBoundingClientRect(), x = (event.clientX - rect.left) * canvas.width / rect.width, y = (event.clientY - rect.top) * canvas.height / rect.height;
    let best = -1, least = (16 * devicePixelRatio) ** 2;
    map.queries.forEach((q, i) => { const [px, py] = project(q.x, q.y), d = (px - x) ** 2 + (py - y) ** 2; if (d < least) { least = d; best = i; } });
    return best;
  }
  function shot(source, words, kind, name) {
    const f = document.createElement("figure"); f.className = kind || "";
    if (source) { const img = document.createElement("img"); img.src = source; img.alt = words + (name ? ": " + name : ""); f.append(img); }
    else f.append(Object.assign(document.createElement("div"), { className: "none" })); // only some photos are in the page
    const c = document.createElement("figcaption"); c.textContent = words; f.append(c);
    return f;
  }
  function show(i) {
    chosen = i; draw(); look.replaceChildren();
    if (i < 0) { look.append(Object.assign(document.createElement("p"), { className: "hint", textContent: "Hover over a query on the map to see it and its best match; click a wrong one to find it in the gallery." })); return; }
    const q = map.queries[i], a = answer(i), shots = document.createElement("div"), words = document.createElement("p");
    shots.className = "shots";
    shots.append(shot(map.thumbs["q" + q.id], "query", "", q.name), shot(map.thumbs["m" + a.id], "best match", a.right ? "right" : "wrong", a.name));
    words.innerHTML = `<b class="${a.right ? "right" : "wrong"}-ink">${a.right ? "correct" : "wrong"}</b>`;
    words.append(` ${q.name} → ${a.name}` + (a.metres === null ? "" : `, ${a.metres} m apart`) + `, descriptor distance ${a.distance}` + (a.rank ? `, first correct match at rank ${a.rank}` : ", no correct match found"));
    look.append(shots, words);
  }
  function entryOf(i) {
    const q = map.queries[i], a = answer(i), entry = document.createElement("button"), shots = document.createElement("div"), words = document.createElement("p");
    entry.className = "entry"; entry.type = "button"; entry.setAttribute("aria-label", `wrong query ${q.name}, matched with ${a.name}`); entry.id = "entry-" + q.id; shots.className = "shots";
    shots.append(shot(map.thumbs["q" + q.id], "query", "", q.name), shot(map.thumbs["m" + a.id], "best match", "wrong", a.name), shot(map.thumbs["m" + a.truth], "correct match", "right"));
    words.textContent = `${q.name}: ` + (a.metres === null ? "" : `${a.metres} m away, `) + `distance ${a.distance}` + (a.rank ? `, correct at rank ${a.rank}` : ", correct match not retrieved");
    entry.append(shots, words); entry.addEventListener("click", () => pick(i, false));
    return entry;
  }
  let order = [], shown = 0;
  function grow(to) {
    gallery.append(...order.slice(shown, to).map(entryOf));
    shown = Math.max(shown, Math.min(to, order.length));
    more.hidden = shown >= order.length;
    more.textContent = `show more (${shown} of ${order.length})`;
  }
  function fill() {
    gallery.replaceChildren(); shown = 0;
    order = map.queries.map((_, i) => i).filter(i => !answer(i).right).sort((i, j) => answer(j).worst - answer(i).worst);
    grow(map.gallery);
  }
  function pick(i, scroll) {
    show(i);
    document.querySelectorAll(".entry.chosen").forEach(e => e.classList.remove("chosen"));
    if (order.includes(i)) grow(order.indexOf(i) + 1);
    const entry = i >= 0 && document.getElementById("entry-" + map.queries[i].id);
    if (entry) { entry.classList.add("chosen"); if (scroll) entry.scrollIntoView({ behavior: "smooth", block: "nearest" }); }
  }
  const more = document.getElementById("gallery-more");
  more.addEventListener("click", () => grow(shown + map.gallery));
  const bar = document.getElementById("map-models");
  map.models.forEach((m, k) => {
    const b = document.createElement("button");
    b.textContent = `${m.name} (${m.answers.filter(a => a.right).length} correct of ${m.answers.length})`; b.type = "button";
    b.addEventListener("click", () => { model = k; [...bar.children].forEach((c, j) => c.classList.toggle("on", j === k)); fill(); pick(chosen, false); draw(); });
    bar.append(b);
  });
  canvas.addEventListener("mousemove", e => { const i = nearest(e); if (i >= 0 && i !== chosen) show(i); });
  canvas.addEventListener("click", e => pick(nearest(e), true));
  canvas.addEventListener("keydown", e => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key], n = map.queries.length;
    if (step) { e.preventDefault(); show(((chosen < 0 && step < 0 ? 0 : chosen) + step + n) % n); }
    if (e.key === "Enter" && chosen >= 0) pick(chosen, true);
  });
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  bar.lastElementChild.click();
  window.covisReport = { map, project, pick, answer, canvas };
}

"use strict";
// The map of every page: on Earth or on a plane in metres, over tiles or a grid. Names are shown as text, never as markup.
const PlaceMap = (() => {
  const METRE_DEG = 1 / 111320;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Children that are strings become text nodes.
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  const Grid = L.GridLayer.extend({ createTile: () => element("div", { class: "grid-tile" }) });

  // Public tile servers answer only pages that say where they are from.
  const streets = ({ address, credit, link }) => L.tileLayer(address, {
    maxZoom: 22,
    maxNativeZoom: 19,
    referrerPolicy: "strict-origin-when-cross-origin",
    attribution: element("a", { href: link, target: "_blank", rel: "noopener" }, credit).outerHTML,
  });

  function create(id, { earth, tiles = null, ...options }) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const map = L.map(id, {
      crs: earth ? L.CRS.EPSG3857 : L.CRS.Simple,
      preferCanvas: true,
      minZoom: earth ? 1 : -10,
      maxZoom: earth ? 22 : 8,
      zoomSnap: 0.5,
      zoomAnimation: !calm,
      fadeAnimation: !calm,
      ...options,
    });
    map.attributionControl.setPrefix(false);
    L.control.scale({ imperial: false }).addTo(map);
    (earth && tiles ? streets(tiles) : new Grid({ minZoom: -20, maxZoom: 24, noWrap: true })).addTo(map);
    new ResizeObserver(() => map.invalidateSize()).observe(map.getContainer());
    return map;
  }

  const unit = (earth) => (earth ? METRE_DEG : 1);

  // A heading as a wedge of `length` metres; `at` is [latitude, longitude] or [north, east].
  function wedge(earth, at, heading, length, style) {
    const squeeze = earth ? Math.max(0.05, Math.cos((at[0] * Math.PI) / 180)) : 1;
    const tip = (turn) => {
      const angle = ((heading + turn) * Math.PI) / 180;
      return [at[0] + Math.cos(angle) * length * unit(earth), at[1] + (Math.sin(angle) * length * unit(earth)) / squeeze];
    };
    return L.polygon([at, ...[-24, -12, 0, 12, 24].map(tip)], { stroke: false, interactive: false, ...style });
  }

  function pin({ heading = null, fill, size = 7, label = "" }) {
    const turn = heading === null ? "" : `<path d="M0 0L-9 -24L9 -24Z" fill="${fill}" fill-opacity=".55" transform="rotate(${Number(heading)})"/>`;
    const dot = `<circle r="${Number(size)}" fill="${fill}" stroke="#fff" stroke-width="2"/>`;
    const text = label === "" ? "" : `<text y="4.5" text-anchor="middle" font-size="12" fill="#fff">${Number(label)}</text>`;
    const html = `<svg width="26" height="26" viewBox="-13 -13 26 26" aria-hidden="true">${turn}${dot}${text}</svg>`;
    return L.divIcon({ className: "pin", html, iconSize: [26, 26] });
  }

  // Leaflet takes strings as markup, so a name is given to it as an element.
  const tooltip = (layer, text) => layer.bindTooltip(element("span", {}, text));

  // What else pages share: shares, pictures with captions, ways to take a position elsewhere.
  const percent = (share) => `${Math.min(99, Math.max(1, Math.round(100 * share)))}\u00a0%`; // no estimate is 0 or 100

  const picture = (source, alt) => (source ? element("img", { src: source, alt }) : element("span", { class: "gone" }, "no picture"));

  const figure = (source, alt, caption, kind = "") => element("figure", { class: kind }, picture(source, alt), element("figcaption", {}, caption));

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch { // a page opened from a file may be refused
      const area = element("textarea", {}, text);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function links(latitude, longitude) {
    const [lat, lon] = [latitude, longitude].map((degrees) => degrees.toFixed(6));
    const away = (text, href) => element("a", { href, target: "_blank", rel: "noopener noreferrer" }, text);
    return [
      away("OpenStreetMap", `https://www.openstreetmap.org/?mlat=${lat}&mlon=${lon}#map=18/${lat}/${lon}`),
      away("geo: link", `geo:${lat},${lon}`),
      element("button", { type: "button", class: "copy", onclick: () => copy(`${lat}, ${lon}`) }, "copy position"),
    ];
  }

  return { colour, copy, create, element, figure, links, percent, picture, pin, tooltip, unit, wedge };
})();

"use strict";
// The map of every page: on Earth or on a plane in metres, over tiles or a grid. Names are shown as text, never as markup.
const PlaceMap = (() => {
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

  // Tiles of a server, or those that the page holds. Public servers answer only pages that say where they are from.
  function streets({ address, credit, link, finest = 19, coarsest = 0, embedded = null }) {
    const layer = L.tileLayer(address, {
      maxZoom: 22,
      minNativeZoom: Number(coarsest),
      maxNativeZoom: Number(finest),
      referrerPolicy: "strict-origin-when-cross-origin",
      attribution: (link ? element("a", { href: link, target: "_blank", rel: "noopener" }, credit) : element("span", {}, credit)).outerHTML,
    });
    if (embedded) layer.getTileUrl = ({ x, y, z }) => embedded[`${z}/${x}/${y}`] || L.Util.emptyImageUrl;
    return layer;
  }

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
    const sized = new ResizeObserver(() => map.invalidateSize());
    sized.observe(map.getContainer());
    map.on("unload", () => sized.disconnect());
    return map;
  }

  // A place on the map's canvas: a dot, and a wedge where it looks, of one size at every zoom.
  const Place = L.CircleMarker.extend({
    options: { heading: null, radius: 3, stroke: false, fillOpacity: 0.8 },
    _updateBounds() {
      const reach = 3 * this._radius + this._clickTolerance();
      this._pxBounds = L.bounds(this._point.subtract([reach, reach]), this._point.add([reach, reach]));
    },
    _updatePath() {
      const { _ctx: context, _drawing: drawing } = this._renderer, { heading, fillColor, fillOpacity } = this.options;
      if (drawing && heading !== null && !this._empty()) {
        const { x, y } = this._point, turn = ((heading - 90) * Math.PI) / 180;
        context.globalAlpha = fillOpacity / 2;
        context.fillStyle = fillColor;
        context.beginPath();
        context.moveTo(x, y);
        context.arc(x, y, 3 * this._radius, turn - 0.42, turn + 0.42);
        context.fill();
      }
      L.CircleMarker.prototype._updatePath.call(this);
    },
  });
  const place = (at, options) => new Place(at, options);

  // One colour per group, as far from those of its neighbours as a circle of hues allows.
  const groupColour = (i) => `hsl(${Math.round(i * 137.5) % 360} 62% ${matchMedia("(prefers-color-scheme: dark)").matches ? 62 : 42}%)`;

  function pin({ heading = null, fill, size = 7, label = "" }) {
    const turn = heading === null ? "" : `<path d="M0 0L-9 -24L9 -24Z" fill="${fill}" fill-opacity=".55" transform="rotate(${Number(heading)})"/>`;
    const dot = `<circle r="${Number(size)}" fill="${fill}" stroke="#fff" stroke-width="2"/>`;
    const text = label === "" ? "" : `<text y="4.5" text-anchor="middle" font-size="12" fill="#fff">${Number(label)}</text>`;
    const html = `<svg width="26" height="26" viewBox="-13 -13 26 26" aria-hidden="true">${turn}${dot}${text}</svg>`;
    return L.divIcon({ className: "pin", html, iconSize: [26, 26] });
  }

  // Leaflet takes strings as markup, so a name is given to it as an element.
  const tooltip = (layer, text) => layer.bindTooltip(() => element("span", {}, text));

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
      away("Google Maps", `https://www.google.com/maps/search/?api=1&query=${lat},${lon}`),
      away("geo: link", `geo:${lat},${lon}`),
      element("button", { type: "button", class: "copy", onclick: () => copy(`${lat}, ${lon}`) }, "copy position"),
    ];
  }

  return { colour, copy, create, element, figure, groupColour, links, percent, picture, pin, place, tooltip };
})();

"""Exact area shared by two circular sectors: closed form, float64, SIMD.

Green's theorem around the apex of the smaller sector A: A's straight edges contribute nothing, so the shared area is
the sum of A's arc inside B, B's two edges inside A, and B's arc inside A. Every meeting point of two curves is
computed once and used for both, so that rounding moves the shared outline but cannot tear it open: that keeps
tangent, coincident and nearly coincident sectors exact. Openings above 180° are cut into two convex halves.
The error, as a share of the smaller sector, is below 3e-14 ÷ w, where w is the width r θ of the narrower sector as a
share of the larger radius: below 1e-10 for openings from 1° and radii up to 1 : 50.

Inside the kernels x is forward along A's axis, y to its left, angles are radians counter-clockwise, and sectors are
convex. There are no branches and no calls except the square root, so that the compiler makes SIMD of the loops.
"""

from __future__ import annotations

import math
from typing import Any

from covis.compiling import kernel

PI = math.pi
TAU = 2.0 * math.pi
_TINY = 1e-300
SIMD: dict[str, Any] = {"fastmath": {"contract", "nsz", "nnan"}}
"""Not reassoc: the order of operations is part of the exactness."""
INLINE: dict[str, Any] = {**SIMD, "forceinline": True}


@kernel(**INLINE)
def upper_angle(x: float, h: float) -> float:
    """Angle of the point (x, h ≥ 0) in [0, π], to about one unit in the last place."""
    ax = abs(x)
    low, high = min(ax, h), max(ax, h)
    steep = low > 0.41421356237309503 * high
    z = (low - high if steep else low) / max(high + low if steep else high, _TINY)
    y = z * z
    p = 0.022748939747779046
    p = p * y - 0.04483218628995374
    p = p * y + 0.057362969593526145
    p = p * y - 0.06649607953399717
    p = p * y + 0.07691054614825647
    p = p * y - 0.09090852527088297
    p = p * y + 0.11111109635603796
    p = p * y - 0.1428571426608229
    p = p * y + 0.19999999999898324
    p = p * y - 0.3333333333333325
    angle = z + z * (y * p) + (0.25 * PI if steep else 0.0)
    angle = 0.5 * PI - angle if h > ax else angle
    return PI - angle if x < 0.0 else angle


@kernel(**INLINE)
def nearest_integer(x: float) -> float:
    """x rounded to an integer, without a call: beyond 2⁵² a double has no fraction left."""
    return (x + 6755399441055744.0) - 6755399441055744.0


@kernel(**INLINE)
def sine_cosine(degrees: float) -> tuple[float, float]:
    """Sine and cosine of an angle in degrees, exact at multiples of 90."""
    quarters = nearest_integer(degrees / 90.0)
    x = (degrees - 90.0 * quarters) * (PI / 180.0)
    y = x * x
    p = 1.5918115263265974e-10
    p = p * y - 2.505113165023518e-08
    p = p * y + 2.7557316101617874e-06
    p = p * y - 0.00019841269836756774
    p = p * y + 0.008333333333330948
    p = p * y - 0.16666666666666666
    sine = x + x * (y * p)
    p = -1.1382623647474604e-11
    p = p * y + 2.087614614655861e-09
    p = p * y - 2.7557317271145144e-07
    p = p * y + 2.480158729876456e-05
    p = p * y - 0.0013888888888887398
    p = p * y + 0.041666666666666664
    cosine = 1.0 - 0.5 * y + y * y * p
    turn = quarters - 4.0 * nearest_integer(0.25 * quarters)  # −2 … 2
    odd = abs(turn) == 1.0
    s, c = (cosine if odd else sine), (sine if odd else cosine)
    s = -s if turn == -1.0 else s
    c = -c if turn == 1.0 else c
    back = abs(turn) == 2.0
    return (-s if back else s), (-c if back else c)


@kernel(**INLINE)
def wrapped(angle: float) -> float:
    """An angle in (−3π, 3π) brought into [−π, π]."""
    angle = angle - TAU if angle > PI else angle
    return angle + TAU if angle < -PI else angle


@kernel(**INLINE)
def minus_sine(angle: float, sine: float) -> float:
    """angle − sine, without cancellation where that matters: on arcs much wider than the other sector."""
    y = angle * angle
    series = angle * y * (1.0 / 6.0 + y * (-1.0 / 120.0 + y * (1.0 / 5040.0 - y * (1.0 / 362880.0))))
    return series if y < 0.0025 else angle - sine


@kernel(**INLINE)
def forbidden(middle: float, width: float) -> tuple[float, float, float, float]:
    """What the condition |t − middle| ≤ width (mod 2π) leaves of [−π/2, π/2].

    Returns limits (low, high) and one interval to be cut out from between them.
    """
    lower, upper = middle - width, middle + width
    right = middle >= 0.0
    return (
        -PI if right else lower,
        upper if right else PI,
        upper - TAU if right else upper,
        lower if right else lower + TAU,
    )


@kernel(**INLINE)
def ordered_intervals(
    a0: float, pa0: float, a1: float, pa1: float, b0: float, pb0: float, b1: float, pb1: float
) -> tuple[float, float, float, float, float, float, float, float]:
    """Two intervals with a value at each end, the one that starts first in front."""
    swap = b0 < a0
    return (
        b0 if swap else a0,
        pb0 if swap else pa0,
        b1 if swap else a1,
        pb1 if swap else pa1,
        a0 if swap else b0,
        pa0 if swap else pb0,
        a1 if swap else b1,
        pa1 if swap else pb1,
    )


@kernel(**INLINE)
def up_to(
    total: float, cur: float, pcur: float, hi: float, phi: float, b0: float, p0: float, b1: float, p1: float
) -> tuple[float, float, float]:
    """Adds the piece before the cut [b0, b1] and continues behind it."""
    end = min(b0, hi)
    pend = p0 if b0 < hi else phi
    total += pend - pcur if end > cur else 0.0
    behind = b1 > cur
    return total, (b1 if behind else cur), (p1 if behind else pcur)


@kernel(**INLINE)
def allowed(
    half: float, plow: float, phigh: float,
    m1: float, w1: float, pl1: float, pu1: float,
    m2: float, w2: float, pl2: float, pu2: float,
    m3: float, w3: float, pl3: float, pu3: float,
) -> float:  # fmt: skip
    """∫ dp over the part of [−half, half] where three conditions |t − m| ≤ w (mod 2π) hold.

    p is known at ±half (plow, phigh) and at each condition's two ends (pl, pu).
    """
    l1, u1, a0, a1 = forbidden(m1, w1)
    l2, u2, b0, b1 = forbidden(m2, w2)
    l3, u3, c0, c1 = forbidden(m3, w3)
    lo, hi = -half, half
    plow, lo = (pl1 if l1 > lo else plow), max(l1, lo)
    plow, lo = (pl2 if l2 > lo else plow), max(l2, lo)
    plow, lo = (pl3 if l3 > lo else plow), max(l3, lo)
    phigh, hi = (pu1 if u1 < hi else phigh), min(u1, hi)
    phigh, hi = (pu2 if u2 < hi else phigh), min(u2, hi)
    phigh, hi = (pu3 if u3 < hi else phigh), min(u3, hi)
    a0, pu1, a1, pl1, b0, pu2, b1, pl2 = ordered_intervals(a0, pu1, a1, pl1, b0, pu2, b1, pl2)
    a0, pu1, a1, pl1, c0, pu3, c1, pl3 = ordered_intervals(a0, pu1, a1, pl1, c0, pu3, c1, pl3)
    b0, pu2, b1, pl2, c0, pu3, c1, pl3 = ordered_intervals(b0, pu2, b1, pl2, c0, pu3, c1, pl3)
    total, cur, pcur = up_to(0.0, lo, plow, hi, phigh, a0, pu1, a1, pl1)
    total, cur, pcur = up_to(total, cur, pcur, hi, phigh, b0, pu2, b1, pl2)
    total, cur, pcur = up_to(total, cur, pcur, hi, phigh, c0, pu3, c1, pl3)
    return total + (phigh - pcur if hi > cur else 0.0)


@kernel(**INLINE)
def clipped_edge(
    bx: float, by: float, ex: float, ey: float, rb: float, chord: float, sine: float, cosine: float
) -> float:
    """Length of the edge b + s·e, 0 ≤ s ≤ rb, inside A's wedge and within ±chord of A's disc."""
    foot = bx * ex + by * ey
    start, end = max(0.0, -foot - chord), min(rb, chord - foot)
    for side in (-1.0, 1.0):
        across = sine * ex + side * cosine * ey
        inside = sine * bx + side * cosine * by
        across = across if abs(across) > _TINY else _TINY
        limit = -inside / across
        start = max(start, limit) if across > 0.0 else start
        end = min(end, limit) if across < 0.0 else end
    return max(0.0, end - start)


@kernel(**INLINE)
def half_chord(radius: float, off: float, foot: float, distance: float) -> float:
    """Half of what a circle cuts from a line `off` its centre.

    A point of the line lies `foot` from the chord's middle and `distance` from the centre. Where the line touches the
    circle near that point, its distance decides, so that both edges of a sector agree on which side their apex lies.
    """
    near = (radius - distance) * (radius + distance) + foot * foot
    far = (radius - off) * (radius + off)
    return math.sqrt(max(0.0, near if abs(foot) < abs(off) else far))


@kernel(**INLINE)
def line_sines(off: float, foot: float, chord: float, rb: float, over: float) -> tuple[float, float]:
    """Sines of the angles at B's apex from A's apex to both points where a line through A's apex meets B's circle.

    The line passes `off` B's apex; `foot` leads from A's apex to its chord's middle; over = 1 ÷ (d rb). A line that
    misses the circle gets the arc's point nearest to it: such a line cuts nothing from the arc, but where its empty
    cut falls on the arc's end, rounding can leave one end of the cut outside, and the other's value then counts.
    """
    off = min(rb, max(-rb, off)) * over
    return off * foot + off * chord, off * foot - off * chord


@kernel(**INLINE)
def arc_value(t: float, origin: float, sine: float, distance: float, rb: float) -> float:
    """B's boundary integral up to its arc's angle t in [−π, π]: ½ rb (rb τ − d sin τ), τ = t − direction of A's apex."""
    tau = t - origin
    return 0.5 * rb * ((rb - distance) * tau + distance * minus_sine(tau, sine))


@kernel(**INLINE)
def convex_area(
    dx: float, dy: float, turn: float,
    ax: float, ay: float, ra: float, fa: float, ca: float, sa: float,
    bx: float, by: float, rb: float, fb: float, cb: float, sb: float,
) -> float:  # fmt: skip
    """Area shared by two convex sectors.

    (dx, dy) leads from A's apex to B's; `turn` from A's axis to B's, counter-clockwise in [−2π, 2π]. Each sector: unit
    axis (x, y), radius, half opening in (0, π/2] with its cosine and sine.
    """
    if ra > rb:  # the origin belongs to the smaller: a large circle's angles are too coarse for a small one's area
        dx, dy, turn = -dx, -dy, -turn
        ax, ay, ra, fa, ca, sa, bx, by, rb, fb, cb, sb = bx, by, rb, fb, cb, sb, ax, ay, ra, fa, ca, sa
    px, py = dx * ax + dy * ay, dy * ax - dx * ay
    c, s = ax * bx + ay * by, ax * by - ay * bx
    turn = wrapped(turn)
    # both circles: one half chord h for both arcs
    d = max(math.sqrt(px * px + py * py), _TINY)
    q = min(1.0, max(-1.0, (ra - rb) / d))
    h = 0.5 * math.sqrt(max(0.0, (1.0 - q) * (1.0 + q) * (ra + rb - d) * (ra + rb + d)))
    bearing = upper_angle(px, abs(py))
    bearing = -bearing if py < 0.0 else bearing
    wa = upper_angle(0.5 * (d + q * (ra + rb)), h)
    wb = upper_angle(0.5 * (d - q * (ra + rb)), h)
    # B's edges: left and right, unit vectors; their lines' half chords in A's disc serve A's arc as well
    lx, ly = c * cb - s * sb, s * cb + c * sb
    rx, ry = c * cb + s * sb, s * cb - c * sb
    cross_l, cross_r = px * ly - py * lx, px * ry - py * rx
    hl = half_chord(ra, cross_l, px * lx + py * ly, d)
    hr = half_chord(ra, cross_r, px * rx + py * ry, d)
    edges = cross_r * clipped_edge(px, py, rx, ry, rb, hr, sa, ca) - cross_l * clipped_edge(
        px, py, lx, ly, rb, hl, sa, ca
    )
    ml, wl = wrapped(turn + fb - 0.5 * PI), upper_angle(cross_l, hl)
    mr, wr = wrapped(turn - fb + 0.5 * PI), upper_angle(-cross_r, hr)
    arc_a = allowed(
        fa, -fa, fa,
        bearing, wa, wrapped(bearing - wa), wrapped(bearing + wa),
        ml, wl, wrapped(ml - wl), wrapped(ml + wl),
        mr, wr, wrapped(mr - wr), wrapped(mr + wr),
    )  # fmt: skip
    # A's edge lines on B's circle
    nl, nr = sa * px - ca * py, sa * px + ca * py
    gl = half_chord(rb, nl, ca * px + sa * py, d)
    gr = half_chord(rb, nr, ca * px - sa * py, d)
    tl, vl = wrapped(fa - 0.5 * PI - turn), upper_angle(-nl, gl)
    tr, vr = wrapped(0.5 * PI - fa - turn), upper_angle(-nr, gr)
    # sines of the angles between A's apex and every meeting point, seen from B's apex; A's edges mirror each other
    origin, over_d, over_rb = wrapped(bearing + PI - turn), 1.0 / d, 1.0 / rb
    sb1, over = h * over_rb, over_d * over_rb
    high_l, low_l = line_sines(-nl, ca * px + sa * py, gl, rb, over)
    low_r, high_r = line_sines(nr, ca * px - sa * py, gr, rb, over)
    arc_b = allowed(
        fb, arc_value(-fb, origin, -cross_r * over_d, d, rb), arc_value(fb, origin, -cross_l * over_d, d, rb),
        origin, wb,
        arc_value(wrapped(origin - wb), origin, -sb1, d, rb), arc_value(wrapped(origin + wb), origin, sb1, d, rb),
        tl, vl, arc_value(wrapped(tl - vl), origin, low_l, d, rb), arc_value(wrapped(tl + vl), origin, high_l, d, rb),
        tr, vr, arc_value(wrapped(tr - vr), origin, low_r, d, rb), arc_value(wrapped(tr + vr), origin, high_r, d, rb),
    )  # fmt: skip
    return max(0.0, 0.5 * (ra * ra * arc_a + edges) + arc_b)

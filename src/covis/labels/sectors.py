"""Exact area shared by two circular sectors: closed form, float64, SIMD.

Green's theorem around the apex of the smaller sector A: A's straight edges contribute nothing, so the shared area is
the sum of A's arc inside B, B's two edges inside A, and B's arc inside A. Every meeting point of two curves is
computed once and used for both, so that rounding moves the shared outline but cannot tear it open: that keeps
tangent, coincident and nearly coincident sectors exact. Openings above 180° are cut into two convex halves.
The error, as a share of the smaller sector, is below 3e-14 ÷ w, where w is the width r θ of the narrower sector as a
share of the larger radius: below 1e-10 for openings from 1° and radii up to 1 : 50.

Inside the kernels x is forward along A's axis, y to its left, angles are radians counter-clockwise, and sectors are
convex. There are no branches and no calls except the square root, so that the compiler vectorises the loops.
"""

from __future__ import annotations

import math
from typing import Any

from covis.core.compiling import kernel

PI = math.pi
TAU = 2.0 * math.pi
_TINY = 1e-300
SIMD: dict[str, Any] = {"fastmath": {"contract", "nsz", "nnan"}}
"""Not reassoc: the order of operations is part of the exactness."""
INLINE: dict[str, Any] = {**SIMD, "forceinline": True}


@kernel(**INLINE)
def upper_angle(x: float, h: float, radius: float) -> float:
    """Angle in [0, π] of the point (x, h ≥ 0) at `radius` > 0 from the origin, to about one unit in the last place.

    It is twice the angle seen from the circle's far end, whose tangent is h ÷ (radius + |x|) ≤ 1.
    """
    base = radius + abs(x)
    steep = h > 0.41421356237309503 * base
    z = (h - base if steep else h) / (base + h if steep else base)
    y = z * z
    y2 = y * y
    y4 = y2 * y2
    low = (0.3999999999979665 * y - 0.666666666666665) + y2 * (0.22222219271207592 * y - 0.2857142853216458)
    mid = (0.15382109229651294 * y - 0.18181705054176594) + y2 * (0.11472593918705229 * y - 0.13299215906799434)
    p = low + y4 * (mid + y4 * (0.045497879495558092 * y - 0.08966437257990748))
    angle = 2.0 * z + z * (y * p) + (0.5 * PI if steep else 0.0)
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


ArcLimits = tuple[float, float, float, float]
"""Limits of an arc: its earliest start, its latest end, and an interval (start, end) that is cut out between them."""


@kernel(**INLINE)
def limits(middle: float, width: float) -> ArcLimits:
    """What the condition |t − middle| ≤ width (mod 2π) leaves of [−π/2, π/2]."""
    lower, upper = middle - width, middle + width
    right = middle >= 0.0
    return (
        -PI if right else lower,
        upper if right else PI,
        upper - TAU if right else upper,
        lower if right else lower + TAU,
    )


@kernel(**INLINE)
def in_order(
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
    lo: float, plow: float, hi: float, phigh: float,
    first: ArcLimits, p: ArcLimits, second: ArcLimits, q: ArcLimits, third: ArcLimits, r: ArcLimits,
) -> float:  # fmt: skip
    """∫ dp over the part of [lo, hi] within three limits; p is known at its ends and at all of the limits."""
    for limit, value in ((first, p), (second, q), (third, r)):
        plow, lo = (value[0] if limit[0] > lo else plow), max(limit[0], lo)
        phigh, hi = (value[1] if limit[1] < hi else phigh), min(limit[1], hi)
    (_, _, a0, a1), (_, _, b0, b1), (_, _, c0, c1) = first, second, third
    (_, _, pa0, pa1), (_, _, pb0, pb1), (_, _, pc0, pc1) = p, q, r
    a0, pa0, a1, pa1, b0, pb0, b1, pb1 = in_order(a0, pa0, a1, pa1, b0, pb0, b1, pb1)
    a0, pa0, a1, pa1, c0, pc0, c1, pc1 = in_order(a0, pa0, a1, pa1, c0, pc0, c1, pc1)
    b0, pb0, b1, pb1, c0, pc0, c1, pc1 = in_order(b0, pb0, b1, pb1, c0, pc0, c1, pc1)
    total, cur, pcur = up_to(0.0, lo, plow, hi, phigh, a0, pa0, a1, pa1)
    total, cur, pcur = up_to(total, cur, pcur, hi, phigh, b0, pb0, b1, pb1)
    total, cur, pcur = up_to(total, cur, pcur, hi, phigh, c0, pc0, c1, pc1)
    return total + (phigh - pcur if hi > cur else 0.0)


@kernel(**INLINE)
def clipped_edge(
    bx: float, by: float, ex: float, ey: float, rb: float, chord: float, sine: float, cosine: float
) -> float:
    """Length of the edge b + s·e, 0 ≤ s ≤ rb, inside A's wedge and within ±chord of A's disc."""
    foot = bx * ex + by * ey
    start, end = max(0.0, -foot - chord), min(rb, chord - foot)
    for side in (-1.0, 1.0):
        across = sine * ex + side * cosine * ey + _TINY
        limit = -(sine * bx + side * cosine * by) / across
        start = max(start, limit if across > 0.0 else 0.0)
        end = min(end, rb if across > 0.0 else limit)
    return max(0.0, end - start)


@kernel(**INLINE)
def half_chord(radius: float, off: float, foot: float, distance: float) -> float:
    """Half of the chord that a circle cuts from a line at distance `off` from its centre.

    A point of the line lies `foot` from the chord's middle and `distance` from the centre. Where the line touches the
    circle near that point, its distance decides, so that both edges of a sector agree on which side their apex lies.
    """
    near = (radius - distance) * (radius + distance) + foot * foot
    far = (radius - off) * (radius + off)
    return math.sqrt(max(0.0, near if abs(foot) < abs(off) else far))


@kernel(**INLINE)
def line_sines(off: float, foot: float, chord: float, rb: float, over: float) -> tuple[float, float]:
    """Sines of the angles at B's apex from A's apex to both points where a line through A's apex meets B's circle.

    The line passes B's apex at distance `off`; `foot` leads from A's apex to its chord's middle; over = 1 ÷ (d rb). A
    line that misses the circle gets the arc's point nearest to it: such a line cuts nothing from the arc, but where its
    empty cut falls on the arc's end, rounding can leave one end of the cut outside, and the other's value then counts.
    """
    off = min(rb, max(-rb, off)) * over
    return off * foot + off * chord, off * foot - off * chord


@kernel(**INLINE)
def arc_value(t: float, origin: float, sine: float, distance: float, rb: float) -> float:
    """B's boundary integral up to its arc's angle t in [−π, π]: ½ rb (rb τ − d sin τ), τ = t − direction of A's apex."""
    tau = t - origin
    return 0.5 * rb * ((rb - distance) * tau + distance * minus_sine(tau, sine))


@kernel(**INLINE)
def arc_values(
    middle: float, width: float, low: float, high: float, origin: float, distance: float, rb: float
) -> ArcLimits:
    """The same at the `limits` of a condition, at whose ends the angle τ has the sines `low` and `high`."""
    lower = arc_value(wrapped(middle - width), origin, low, distance, rb)
    upper = arc_value(wrapped(middle + width), origin, high, distance, rb)
    return lower, upper, upper, lower


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
    # meeting points, each once: of both circles (half chord h), of B's edge lines (left, right) with A's circle, of
    # A's edge lines with B's circle
    d = max(math.sqrt(px * px + py * py), _TINY)
    over = 1.0 / (d * rb)
    over_d = rb * over
    q = min(1.0, max(-1.0, (ra - rb) * over_d))
    h = 0.5 * math.sqrt(max(0.0, (1.0 - q) * (1.0 + q) * (ra + rb - d) * (ra + rb + d)))
    lx, ly = c * cb - s * sb, s * cb + c * sb
    rx, ry = c * cb + s * sb, s * cb - c * sb
    cross_l, cross_r = px * ly - py * lx, px * ry - py * rx
    hl = half_chord(ra, cross_l, px * lx + py * ly, d)
    hr = half_chord(ra, cross_r, px * rx + py * ry, d)
    nl, nr = sa * px - ca * py, sa * px + ca * py
    gl = half_chord(rb, nl, ca * px + sa * py, d)
    gr = half_chord(rb, nr, ca * px - sa * py, d)
    # their angles, all together: the processor computes them side by side
    bearing = upper_angle(px, abs(py), d)
    bearing = -bearing if py < 0.0 else bearing
    wa, wb = upper_angle(0.5 * (d + q * (ra + rb)), h, ra), upper_angle(0.5 * (d - q * (ra + rb)), h, rb)
    wl, wr = upper_angle(cross_l, hl, ra), upper_angle(-cross_r, hr, ra)
    vl, vr = upper_angle(-nl, gl, rb), upper_angle(-nr, gr, rb)
    edge_l, edge_r = clipped_edge(px, py, lx, ly, rb, hl, sa, ca), clipped_edge(px, py, rx, ry, rb, hr, sa, ca)
    # A's arc inside B, where p is the angle itself
    rim = limits(bearing, wa)
    left, right = limits(wrapped(turn + fb - 0.5 * PI), wl), limits(wrapped(turn - fb + 0.5 * PI), wr)
    arc_a = allowed(-fa, -fa, fa, fa, rim, rim, left, left, right, right)
    # B's arc inside A, with the sines of the angles between A's apex and every meeting point, seen from B's apex
    tl, tr = wrapped(fa - 0.5 * PI - turn), wrapped(0.5 * PI - fa - turn)
    origin, sine = wrapped(bearing + PI - turn), h * d * over
    high_l, low_l = line_sines(-nl, ca * px + sa * py, gl, rb, over)
    low_r, high_r = line_sines(nr, ca * px - sa * py, gr, rb, over)  # A's edges mirror each other
    arc_b = allowed(
        -fb, arc_value(-fb, origin, -cross_r * over_d, d, rb), fb, arc_value(fb, origin, -cross_l * over_d, d, rb),
        limits(origin, wb), arc_values(origin, wb, -sine, sine, origin, d, rb),
        limits(tl, vl), arc_values(tl, vl, low_l, high_l, origin, d, rb),
        limits(tr, vr), arc_values(tr, vr, low_r, high_r, origin, d, rb),
    )  # fmt: skip
    return max(0.0, 0.5 * (ra * ra * arc_a + cross_r * edge_r - cross_l * edge_l) + arc_b)

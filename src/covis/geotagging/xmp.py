"""The position of an answer as an XMP file, which photo programs read beside a photo."""

from __future__ import annotations

from xml.sax.saxutils import escape

from covis.maps.answers import Answer, percent

METHOD = "covis visual place recognition"


def method(answer: Answer) -> str:
    """How the position was found, and how likely it is correct."""
    return METHOD if answer.probability is None else f"{METHOD}, {percent(answer.probability)} likely"


def to_xmp(answer: Answer) -> str:
    """The content of the file; the answer must have a position on Earth."""
    assert answer.position is not None
    place, radius = answer.position.place, answer.position.radius_m
    assert place.lat is not None
    assert place.lon is not None
    facts = {"GPSVersionID": "2.3.0.0", "GPSMapDatum": "WGS-84", "GPSProcessingMethod": method(answer)}
    for name, value, signs in (("GPSLatitude", place.lat, "NS"), ("GPSLongitude", place.lon, "EW")):
        whole, minutes = divmod(round(abs(value) * 60, 7), 60)
        facts[name] = f"{whole:.0f},{minutes:.7f}{signs[value < 0]}"
    if radius is not None:
        facts["GPSHPositioningError"] = f"{round(radius * 10):d}/10"
    tags = "".join(f"<exif:{name}>{escape(text)}</exif:{name}>" for name, text in facts.items())
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        f'<rdf:Description rdf:about="" xmlns:exif="http://ns.adobe.com/exif/1.0/">{tags}</rdf:Description>'
        "</rdf:RDF></x:xmpmeta>\n"
    )

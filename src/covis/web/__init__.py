"""What all pages share: the frame, elements, the map component and thumbnails."""

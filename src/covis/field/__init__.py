"""For the tools of structure from motion, SLAM and mapping: pairs, loop closures, full poses, coverage."""

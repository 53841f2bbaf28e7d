"""P3 (Jayarajan et al., 2019): gradients in slices, sent in the order that the next forward needs."""

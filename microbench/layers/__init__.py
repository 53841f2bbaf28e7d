"""Layer times: each distinct layer of a model at the shapes that a rank runs. Light: no torch here."""

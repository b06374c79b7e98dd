"""From where on a measured quantity counts as bad; without torch, because figures draw the limit too."""

# An attention layer whose sensitivity (`saturation.LayerSaturation`) is below this is saturated.
# ViT-Ti and ViT-B on a photograph: at λ = 1 the gradient of W_Q is that of the plain model (sensitivity 3.1e-3 at the
# least), at λ = 1.5 a tenth to a thousandth of it (2.7e-3 at the most behind the first blocks), at λ = 2 1e-4 or less (1.5e-3).
SENSITIVITY_LIMIT = 0.003

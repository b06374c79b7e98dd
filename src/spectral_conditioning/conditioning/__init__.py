"""Spectral conditioning of the attention of any PyTorch model."""

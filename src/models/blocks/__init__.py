"""The parts of the model around the layers: encoder, block (norm, layer, mixer), pooling and heads."""

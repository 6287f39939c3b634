"""The `plan` verb: what a model on given hardware can do, how many workers of each role a load needs, and from which
length on isolating a prefill pays."""

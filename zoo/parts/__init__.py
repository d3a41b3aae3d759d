"""The parts that a Transformer is put together of, one base class per kind."""

"""Matrix products and what is computed as them: GEMM, convolutions, attention, recurrent layers."""

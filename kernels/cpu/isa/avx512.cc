#define KVTIER_ISA avx512
#define KVTIER_LANES 16
#include "kernels/cpu/isa/kernels.inc"

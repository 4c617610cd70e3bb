#define KVTIER_ISA avx2
#define KVTIER_LANES 8
#include "kernels/cpu/isa/kernels.inc"

#define KVTIER_ISA portable
#define KVTIER_LANES 4
#include "kernels/cpu/isa/kernels.inc"

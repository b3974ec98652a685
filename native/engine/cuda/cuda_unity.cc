// Everything for CUDA in one translation unit.
#include "adaptor.cpp"
#include "cuda_device.cpp"
#include "events.cpp"
#include "locked_pieces.cpp"
#include "managed.cpp"
#include "slab.cpp"
#include "stream_lane.cpp"
#include "virtual_memory.cpp"

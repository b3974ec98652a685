// What a tier that compresses is made of, in one translation unit: nothing in it needs torch's headers.
#define LZ4LIB_VISIBILITY __attribute__((visibility("hidden")))  // not to be taken for another library's
#include "choice.cpp"
#include "codecs.cpp"
#include "compression.cpp"
#include "shuffle.cpp"
#include "zero_values.cpp"

// Last, since its macros are many. It has functions that it warns of itself, and that nobody calls.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "lz4/lz4.c"

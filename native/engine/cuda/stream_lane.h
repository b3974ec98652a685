// Lanes on a GPU: copies in a stream of their own, ordered with the compute stream by events. Nobody waits on the host.
//
// Out: the copy begins after what the compute stream has been given so far, so that the bytes are written; who frees
// the region lets the compute stream wait for the copy, and so does not give the bytes to an op before they are
// copied. In: the copy begins when the compute stream has come to where it was asked for, after the last use of its
// region, and the first op that needs it waits. (shared design: runtime, "Copies and streams".)
#pragma once

#include <memory>

#include "../lanes.h"
#include "cuda_device.h"

namespace memfit::cuda {

std::unique_ptr<Lane> make_stream_lane(CudaDevice& device);

}  // namespace memfit::cuda

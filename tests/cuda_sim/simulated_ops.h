// The operators of the simulated GPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

// `op` on the GPU, by its kernel for the CPU.
void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Operators that draw random numbers, for device CUDA.
void simulate_draws(torch::Library& aten);

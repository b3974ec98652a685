// The operators of the simulated GPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

// `op` on the GPU, by its kernel for the CPU.
void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// What `op` makes its library allocate.
void take_workspace(const std::string& name);
void simulate_libraries(torch::Library& aten);
// Operators that draw random numbers, for device CUDA.
void simulate_draws(torch::Library& aten);

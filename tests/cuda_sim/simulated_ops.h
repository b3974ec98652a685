// The operators of the simulated GPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <string>

// `op` on the GPU, by its kernel for the CPU.
void simulate(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// What `op` makes its library allocate.
void take_workspace(const std::string& name);
// `stream` is at work for as long as `op` takes on its tensors, if times are modelled.
void take_time(const std::string& op, const torch::jit::Stack& inputs, const torch::jit::Stack& outputs, cudaStream_t stream);
void simulate_libraries(torch::Library& aten);
// Operators that draw random numbers, for device CUDA.
void simulate_draws(torch::Library& aten);

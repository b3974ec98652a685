// The rest of the simulated CUDA runtime: one device, its properties, the driver's entry points, and kernels, which it
// cannot run. Compiled to a library that is loaded before all others (LD_PRELOAD).
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "fake_streams.h"

extern "C" int simulated_is_used(int device);

namespace simulated {

CUresult granularity(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
CUresult address_reserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult address_free(CUdeviceptr, size_t);
CUresult create(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long);
CUresult release(CUmemGenericAllocationHandle);
CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult unmap(CUdeviceptr, size_t);
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);

namespace {

CUresult error_string(CUresult error, const char** words) {
  *words = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the simulated driver";
  return CUDA_SUCCESS;
}
CUresult context_state(CUdevice device, unsigned* flags, int* active) {
  return *flags = 0, *active = simulated_is_used(device), CUDA_SUCCESS;
}
CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult no_such_attribute(int* value, CUdevice_attribute, CUdevice) { return *value = 0, CUDA_SUCCESS; }

const std::unordered_map<std::string, void*>& entry_points() {
  static auto* points = new std::unordered_map<std::string, void*>{
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRelease", reinterpret_cast<void*>(&release)},
      {"cuMemMap", reinterpret_cast<void*>(&map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&set_access)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&no_such_attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&context_state)},
  };
  return *points;
}

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

thread_local int device_now = 0;

// By the address of their stubs in the host's code. (Never destroyed: libraries unregister at exit.)
std::unordered_map<const void*, const char*>& kernels() {
  static auto* names = new std::unordered_map<const void*, const char*>;
  return *names;
}

[[noreturn]] void refuse_kernel(const void* function) {
  auto found = kernels().find(function);
  die("there is no simulated op for the kernel", found == kernels().end() ? "(unknown)" : found->second);
}

}  // namespace

int current_device() { return device_now; }

}  // namespace simulated

using namespace simulated;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return *count = from_environment("SIMULATED_GPUS", 1), cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  return is_forked() ? fail(cudaErrorInitializationError) : (*device = device_now, cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  if (is_forked()) return fail(cudaErrorInitializationError);
  if (device < 0 || device >= from_environment("SIMULATED_GPUS", 1)) return fail(cudaErrorInvalidDevice);
  return device_now = device, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = from_environment("SIMULATED_PEERS", 0), cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int) {
  std::snprintf(name, static_cast<size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  size_t free = 0;
  *properties = {};
  std::strcpy(properties->name, "Simulated");
  cudaMemGetInfo(&free, &properties->totalGlobalMem);
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxGridSize[0] = properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = properties->maxThreadsDim[2] = 1024;
  properties->sharedMemPerBlock = 49152;
  properties->regsPerBlock = 65536;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  auto point = entry_points().find(name);
  *function = point == entry_points().end() ? reinterpret_cast<void*>(&unsupported) : point->second;
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorNotReady: return "device not ready";
    default: return "an error of the simulated runtime";
  }
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// Kernels: known by name, so that whoever launches one is told which.
void** __cudaRegisterFatBinary(void*) {
  static void* nothing = nullptr;
  return &nothing;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  kernels()[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = dim3(1);
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) { refuse_kernel(kernel); }
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { refuse_kernel(function); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) { refuse_kernel(function); }

}  // extern "C"

// What torch's run-time compiler library wants of the driver (libcuda.so.1, whose name the simulator bears). None of it
// works, but for the question whether a device is in use.
#define UNSUPPORTED(name) \
  int name() { return 801; }

extern "C" {

int simulated_is_used(int device);
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return *flags = 0, *active = simulated_is_used(device), 0;
}

UNSUPPORTED(cuCtxGetCurrent)
UNSUPPORTED(cuCtxSetCurrent)
UNSUPPORTED(cuDeviceGet)
UNSUPPORTED(cuDeviceGetAttribute)
UNSUPPORTED(cuDevicePrimaryCtxRetain)
UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuFuncSetAttribute)
UNSUPPORTED(cuFuncSetCacheConfig)
UNSUPPORTED(cuGetErrorString)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchKernel)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuModuleGetFunction)
UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuModuleLoadData)
UNSUPPORTED(cuModuleLoadDataEx)
UNSUPPORTED(cuModuleUnload)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cuPointerGetAttribute)
UNSUPPORTED(cuTensorMapEncodeTiled)

}  // extern "C"

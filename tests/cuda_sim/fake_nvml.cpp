// What torch's allocator asks of the driver's management library (libnvidia-ml.so.1, whose name this one bears) before it maps
// an expandable segment: whether the GPU is part of a fabric. It is part of none. The rest is only looked up.
#define UNSUPPORTED(name) \
  int name() { return 3; }

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int only = 0;
  return *device = &only, 0;
}

UNSUPPORTED(nvmlDeviceGetComputeRunningProcesses)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV)
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlSystemGetCudaDriverVersion_v2)

}  // extern "C"

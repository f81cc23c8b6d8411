/* A stand-in libnvidia-ml.so for tests: as many GPUs as STANDIN_GPUS says, of which STANDIN_LOST is gone. */
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, INVALID = 2, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
static int number(const char *name, int fallback) {
  const char *text = getenv(name);
  return text ? atoi(text) : fallback;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("STANDIN_BROKEN", 0) ? DRIVER_NOT_LOADED : OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
  return code == GPU_IS_LOST ? "GPU is lost" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "error";
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("STANDIN_GPUS", 8); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if ((int)index == number("STANDIN_LOST", -1)) return GPU_IS_LOST;
  *device = (void *)(long)(index + 1);
  return OK;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  return device ? (snprintf(uuid, length, "GPU-%ld", (long)device), OK) : INVALID;
}

/* A stand-in libnvidia-ml.so for tests, held to NVIDIA's own header. What it answers stands in the file that
 * STANDIN_CONTROL names, read again at each call: lines `KEY NUMBER`, of which the last of a key counts.
 *
 *   gpus 8                     how many GPUs the driver lists
 *   init 9                     what nvmlInit returns
 *   hang.nvmlDeviceGetUUID 1   that call does not return while the line is there
 *   3.error 15                 what every call on GPU 3 returns
 *   3.recovery_action 4        a value of GPU 3; see `value` for the names
 *   event.3 79                 an XID on GPU 3; played once, in the order of the file
 */
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINKS 18

struct nvmlEventSet_st { int played; unsigned char wants[64]; };

static FILE *control(void) {
  const char *path = getenv("STANDIN_CONTROL");
  return path ? fopen(path, "r") : NULL;
}

static long long number(const char *key, long long fallback) {
  char name[128];
  long long value;
  FILE *file = control();
  while (file && fscanf(file, "%127s %lld", name, &value) == 2)
    if (strcmp(name, key) == 0) fallback = value;
  if (file) fclose(file);
  return fallback;
}

static unsigned index_of(nvmlDevice_t device) { return (unsigned)((size_t)device - 1); }

static long long value(nvmlDevice_t device, const char *name, long long fallback) {
  char key[128];
  snprintf(key, sizeof key, "%u.%s", index_of(device), name);
  return number(key, fallback);
}

static void nap(long milliseconds) {
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static nvmlReturn_t enter(const char *function, nvmlDevice_t device) {
  char key[128];
  snprintf(key, sizeof key, "hang.%s", function);
  while (number(key, 0)) nap(20);
  return device ? (nvmlReturn_t)value(device, "error", NVML_SUCCESS) : NVML_SUCCESS;
}

#define ENTER(device) do { nvmlReturn_t r_ = enter(__func__, device); if (r_ != NVML_SUCCESS) return r_; } while (0)
#define ANSWER(device, target, name, fallback) \
  do { ENTER(device); *(target) = value(device, name, fallback); return NVML_SUCCESS; } while (0)

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  ENTER(NULL);
  return (nvmlReturn_t)number("init", NVML_SUCCESS);
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
  }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
  ENTER(NULL);
  snprintf(version, length, "580.0-standin");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
  ENTER(NULL);
  *count = (unsigned)number("gpus", 8);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  *device = (nvmlDevice_t)(size_t)(index + 1);
  ENTER(*device);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
  ENTER(device);
  snprintf(uuid, length, "GPU-%08x-0000-0000-0000-000000000000", index_of(device));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  ENTER(device);
  memset(pci, 0, sizeof *pci);
  snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0xa0 + index_of(device));
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
  ANSWER(device, state, "pstate", 0);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
  ANSWER(device, reasons, "clock_reasons", 0);
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
  ANSWER(device, generation, "pcie_generation", 5);
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
  ANSWER(device, generation, "pcie_generation_max", 5);
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width) {
  ANSWER(device, width, "pcie_width", 16);
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *width) {
  ANSWER(device, width, "pcie_width_max", 16);
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active) {
  ENTER(device);
  if (link >= (unsigned)value(device, "nvlinks", LINKS)) return NVML_ERROR_INVALID_ARGUMENT;
  *active = link < (unsigned)value(device, "nvlinks_active", LINKS) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) {
  ENTER(device);
  if (status->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  status->bThresholdExceeded = (unsigned)value(device, "sram_threshold", 0);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
  static const struct { unsigned field; const char *name; } known[] = {
      {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, "recovery_action"},
      {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "ecc_sbe"},
      {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "ecc_dbe"},
      {NVML_FI_DEV_REMAPPED_UNC, "remapped_uncorrectable"},
      {NVML_FI_DEV_REMAPPED_PENDING, "remapped_pending"},
      {NVML_FI_DEV_REMAPPED_FAILURE, "remapped_failure"},
      {NVML_FI_DEV_PCIE_REPLAY_COUNTER, "pcie_replays"},
      {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "nvlink_crc_flit"},
      {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "nvlink_replay"},
  };
  ENTER(device);
  for (int i = 0; i < count; i++) {
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
      if (known[k].field != values[i].fieldId) continue;
      values[i].nvmlReturn = NVML_SUCCESS;
      values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
      values[i].value.ullVal = (unsigned long long)value(device, known[k].name, 0);
    }
  }
  return NVML_SUCCESS;
}

static int next_event(int from, unsigned *gpu, long long *xid) {
  char name[128];
  long long found;
  int seen = 0;
  FILE *file = control();
  while (file && fscanf(file, "%127s %lld", name, &found) == 2)
    if (sscanf(name, "event.%u", gpu) == 1 && seen++ == from) {
      *xid = found;
      fclose(file);
      return 1;
    }
  if (file) fclose(file);
  return 0;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  unsigned gpu;
  long long xid;
  ENTER(NULL);
  *set = calloc(1, sizeof **set);
  while (next_event((*set)->played, &gpu, &xid)) (*set)->played++; /* what was before is told to nobody */
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
  ENTER(device);
  *types = nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  ENTER(device);
  if (types & ~(unsigned long long)(nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError))
    return NVML_ERROR_NOT_SUPPORTED;
  set->wants[index_of(device)] = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
  for (unsigned waited = 0; ; waited += 20) {
    unsigned gpu;
    long long xid;
    ENTER(NULL);
    while (next_event(set->played, &gpu, &xid)) {
      set->played++;
      if (gpu >= sizeof set->wants || !set->wants[gpu]) continue;
      memset(data, 0, sizeof *data);
      data->device = (nvmlDevice_t)(size_t)(gpu + 1);
      data->eventType = nvmlEventTypeXidCriticalError;
      data->eventData = (unsigned long long)xid;
      data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFF;
      return NVML_SUCCESS;
    }
    if (waited >= timeout) return NVML_ERROR_TIMEOUT;
    nap(20);
  }
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { free(set); return NVML_SUCCESS; }

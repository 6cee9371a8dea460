/* A library that speaks NVML's C interface and answers from a scenario, so that tests go through the real binding.

   Written from the documented interface of nvml.h; it holds no code of NVIDIA's. Types and layouts are declared here on
   their own, not taken from the binding, so that a mismatch between the two shows.

   Scenario: the text file named by NVML_STUB, one statement a line:

     gpu UUID NAME_WITHOUT_SPACES          a GPU; MIG devices of it follow
     mig UUID NAME GPU_INSTANCE COMPUTE_INSTANCE
     set KEY VALUE                         a value of the last device; see `keys`
     process PID BYTES                     a process on the last device
     mode mig                              the last GPU is in MIG mode
     error FUNCTION CODE [AFTER [DEVICE]]  from the call number AFTER on (0: always), for all devices or that UUID
     die CODE AFTER                        from that call on (all functions together) everything answers CODE

   Compiled with -DOLD_DRIVER it lacks the functions that drivers before 510 lack. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int ret_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, VERSION = 25 };

enum key {
  GPU_UTIL, MEM_UTIL, MEM_TOTAL, MEM_RESERVED, MEM_USED, POWER, POWER_LIMIT, TEMPERATURE, SLOWDOWN, MARGIN, SM_CLOCK,
  SM_CLOCK_MAX, MEM_CLOCK, MEM_CLOCK_MAX, REASONS, PCIE_TX, PCIE_RX, WIDTH, WIDTH_MAX, GENERATION, GENERATION_MAX,
  ECC_CORRECTED, ECC_UNCORRECTED, MAJOR, MINOR, GPM, GPM_GRAPHICS, GPM_SM, GPM_OCCUPANCY, GPM_TENSOR, GPM_DRAM, GPM_TX,
  GPM_RX, KEYS
};
static const char *keys[KEYS] = {
  "gpu_util", "mem_util", "mem_total", "mem_reserved", "mem_used", "power", "power_limit", "temperature", "slowdown",
  "margin", "sm_clock", "sm_clock_max", "mem_clock", "mem_clock_max", "reasons", "pcie_tx", "pcie_rx", "width",
  "width_max", "generation", "generation_max", "ecc_corrected", "ecc_uncorrected", "major", "minor", "gpm",
  "gpm_graphics", "gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram", "gpm_tx", "gpm_rx"
};

struct process { unsigned pid; unsigned long long bytes; };
struct device {
  char uuid[96], name[96];
  int is_mig, mig_mode, parent;
  unsigned gpu_instance, compute_instance;
  double value[KEYS];
  int known[KEYS];
  struct process processes[16];
  unsigned process_count;
};
struct fault { char function[64], uuid[96]; int code; long after; };
struct counter { char function[64]; long calls; };

static struct device devices[32];
static struct fault faults[128];
static struct counter counters[64];
static int device_count, fault_count, counter_count, users, death, loaded;
static long all_calls, dies_after;

static void load(void) {
  char line[512], a[96], b[96];
  long after;
  unsigned x, y;
  double number;
  int code;
  FILE *file = getenv("NVML_STUB") ? fopen(getenv("NVML_STUB"), "r") : NULL;
  struct device *last = NULL;
  int gpu = -1;
  loaded = 1;
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "gpu %95s %95s", a, b) == 2 || sscanf(line, "mig %95s %95s %u %u", a, b, &x, &y) == 4) {
      last = &devices[device_count];
      strcpy(last->uuid, a);
      strcpy(last->name, b);
      last->is_mig = line[0] == 'm';
      if (!last->is_mig) gpu = device_count;
      last->parent = gpu;
      if (last->is_mig) { last->gpu_instance = x; last->compute_instance = y; }
      device_count++;
    } else if (last && sscanf(line, "set %95s %lf", a, &number) == 2) {
      for (int i = 0; i < KEYS; i++)
        if (!strcmp(keys[i], a)) { last->value[i] = number; last->known[i] = 1; }
    } else if (last && sscanf(line, "process %u %lf", &x, &number) == 2) {
      last->processes[last->process_count].pid = x;
      last->processes[last->process_count++].bytes = number < 0 ? ~0ULL : (unsigned long long)number;
    } else if (last && !strncmp(line, "mode mig", 8)) {
      last->mig_mode = 1;
    } else if (!strncmp(line, "error ", 6)) {
      struct fault *f = &faults[fault_count++];
      f->after = 0;
      f->uuid[0] = 0;
      sscanf(line, "error %63s %d %ld %95s", f->function, &f->code, &f->after, f->uuid);
    } else if (sscanf(line, "die %d %ld", &code, &after) == 2) {
      death = code;
      dies_after = after;
    }
  }
  if (file) fclose(file);
}

/* For the tests: the functions called so far and how often, in order of the first call; NULL behind the last one. */
const char *stub_function(int index) { return index < counter_count ? counters[index].function : NULL; }
long stub_calls(int index) { return counters[index].calls; }

/* For the tests: users that have not shut NVML down, and sample buffers that were not freed. */
static long buffers;
long stub_users(void) { return users; }
long stub_buffers(void) { return buffers; }

/* For the tests: forget everything; the next call reads the scenario anew. */
void stub_reset(void) {
  memset(devices, 0, sizeof devices);
  device_count = fault_count = counter_count = users = death = loaded = 0;
  all_calls = dies_after = buffers = 0;
}

static ret_t enter(const char *function, const struct device *device) {
  int i;
  if (!loaded) load();
  all_calls++;
  for (i = 0; i < counter_count && strcmp(counters[i].function, function); i++) {}
  if (i == counter_count) {
    strcpy(counters[counter_count].function, function);
    counters[counter_count++].calls = 0;
  }
  counters[i].calls++;
  if (death && all_calls > dies_after) return death;
  for (int j = 0; j < fault_count; j++)
    if (!strcmp(faults[j].function, function) && counters[i].calls > faults[j].after &&
        (!faults[j].uuid[0] || (device && !strcmp(faults[j].uuid, device->uuid))))
      return faults[j].code;
  if (!users && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
  return OK;
}

#define ENTER(device)                                                                                                  \
  do {                                                                                                                 \
    ret_t entered = enter(__func__, device);                                                                           \
    if (entered != OK) return entered;                                                                                 \
  } while (0)

static ret_t number(const struct device *device, enum key key, double *value) {
  if (!device->known[key]) return NOT_SUPPORTED;
  *value = device->value[key];
  return OK;
}

#define GIVE(device, key, type, target)                                                                                \
  do {                                                                                                                 \
    double given;                                                                                                      \
    ret_t result = number(device, key, &given);                                                                        \
    if (result != OK) return result;                                                                                   \
    *(target) = (type)given;                                                                                           \
  } while (0)

static ret_t text(const char *value, char *target, unsigned size) {
  if (strlen(value) + 1 > size) return SMALL;
  strcpy(target, value);
  return OK;
}

const char *nvmlErrorString(ret_t code) {
  static char words[64];
  if (code == 15) return "GPU is lost";
  if (code == 9) return "Driver Not Loaded";
  snprintf(words, sizeof words, "stub error %d", code);
  return words;
}

ret_t nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  ENTER(NULL);
  users++;
  return OK;
}

ret_t nvmlShutdown(void) {
  ENTER(NULL);
  users--;
  return OK;
}

ret_t nvmlSystemGetDriverVersion(char *version, unsigned size) {
  ENTER(NULL);
  return text("570.00", version, size);
}

ret_t nvmlDeviceGetCount_v2(unsigned *count) {
  ENTER(NULL);
  *count = 0;
  for (int i = 0; i < device_count; i++) *count += !devices[i].is_mig;
  return OK;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  ENTER(NULL);
  for (int i = 0; i < device_count; i++)
    if (!devices[i].is_mig && index-- == 0) { *device = &devices[i]; return OK; }
  return INVALID;
}

ret_t nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned size) {
  ENTER(device);
  return text(device->uuid, uuid, size);
}

ret_t nvmlDeviceGetName(struct device *device, char *name, unsigned size) {
  ENTER(device);
  return text(device->name, name, size);
}

ret_t nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  ENTER(device);
  *current = *pending = (unsigned)device->mig_mode;
  return OK;
}

ret_t nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
  ENTER(device);
  *count = 7;
  return OK;
}

ret_t nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **mig) {
  ENTER(device);
  for (int i = 0; i < device_count; i++)
    if (devices[i].is_mig && devices[i].parent == device - devices && index-- == 0) { *mig = &devices[i]; return OK; }
  return NOT_FOUND;
}

ret_t nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id) {
  ENTER(device);
  if (!device->is_mig) return INVALID;
  *id = device->gpu_instance;
  return OK;
}

ret_t nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id) {
  ENTER(device);
  if (!device->is_mig) return INVALID;
  *id = device->compute_instance;
  return OK;
}

struct utilization { unsigned gpu, memory; };
ret_t nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates) {
  ENTER(device);
  GIVE(device, GPU_UTIL, unsigned, &rates->gpu);
  GIVE(device, MEM_UTIL, unsigned, &rates->memory);
  return OK;
}

/* The first version counts what the driver reserves as used. */
struct memory { unsigned long long total, free, used; };
ret_t nvmlDeviceGetMemoryInfo(struct device *device, struct memory *info) {
  ENTER(device);
  GIVE(device, MEM_TOTAL, unsigned long long, &info->total);
  GIVE(device, MEM_USED, unsigned long long, &info->used);
  info->used += (unsigned long long)device->value[MEM_RESERVED];
  info->free = info->total - info->used;
  return OK;
}

ret_t nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts) {
  ENTER(device);
  GIVE(device, POWER, unsigned, milliwatts);
  return OK;
}

ret_t nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *milliwatts) {
  ENTER(device);
  GIVE(device, POWER_LIMIT, unsigned, milliwatts);
  return OK;
}

ret_t nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned *celsius) {
  ENTER(device);
  if (sensor != 0) return INVALID;
  GIVE(device, TEMPERATURE, unsigned, celsius);
  return OK;
}

ret_t nvmlDeviceGetTemperatureThreshold(struct device *device, int which, unsigned *celsius) {
  ENTER(device);
  if (which != 1) return INVALID;
  GIVE(device, SLOWDOWN, unsigned, celsius);
  return OK;
}

ret_t nvmlDeviceGetClockInfo(struct device *device, int kind, unsigned *mhz) {
  ENTER(device);
  if (kind != 1 && kind != 2) return INVALID;
  GIVE(device, kind == 1 ? SM_CLOCK : MEM_CLOCK, unsigned, mhz);
  return OK;
}

ret_t nvmlDeviceGetMaxClockInfo(struct device *device, int kind, unsigned *mhz) {
  ENTER(device);
  if (kind != 1 && kind != 2) return INVALID;
  GIVE(device, kind == 1 ? SM_CLOCK_MAX : MEM_CLOCK_MAX, unsigned, mhz);
  return OK;
}

ret_t nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *reasons) {
  ENTER(device);
  GIVE(device, REASONS, unsigned long long, reasons);
  return OK;
}

ret_t nvmlDeviceGetPcieThroughput(struct device *device, int counter, unsigned *kilobytes_per_s) {
  ENTER(device);
  if (counter != 0 && counter != 1) return INVALID;
  GIVE(device, counter == 0 ? PCIE_TX : PCIE_RX, unsigned, kilobytes_per_s);
  return OK;
}

ret_t nvmlDeviceGetCurrPcieLinkWidth(struct device *device, unsigned *width) {
  ENTER(device);
  GIVE(device, WIDTH, unsigned, width);
  return OK;
}

ret_t nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned *width) {
  ENTER(device);
  GIVE(device, WIDTH_MAX, unsigned, width);
  return OK;
}

ret_t nvmlDeviceGetCurrPcieLinkGeneration(struct device *device, unsigned *generation) {
  ENTER(device);
  GIVE(device, GENERATION, unsigned, generation);
  return OK;
}

ret_t nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned *generation) {
  ENTER(device);
  GIVE(device, GENERATION_MAX, unsigned, generation);
  return OK;
}

ret_t nvmlDeviceGetTotalEccErrors(struct device *device, int kind, int since, unsigned long long *count) {
  ENTER(device);
  if (since != 0 || (kind != 0 && kind != 1)) return INVALID;
  GIVE(device, kind == 0 ? ECC_CORRECTED : ECC_UNCORRECTED, unsigned long long, count);
  return OK;
}

ret_t nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
  ENTER(device);
  GIVE(device, MAJOR, int, major);
  GIVE(device, MINOR, int, minor);
  return OK;
}

struct process_info { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
static ret_t list(struct device *device, unsigned *count, struct process_info *infos) {
  unsigned room = *count;
  *count = device->process_count;
  if (device->process_count > room || (device->process_count && !infos)) return SMALL;
  for (unsigned i = 0; i < device->process_count; i++) {
    infos[i].pid = device->processes[i].pid;
    infos[i].bytes = device->processes[i].bytes;
    infos[i].gpu_instance = infos[i].compute_instance = 0xffffffffu;
  }
  return OK;
}

ret_t nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count, struct process_info *infos) {
  ENTER(device);
  return list(device, count, infos);
}

#ifndef OLD_DRIVER

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
ret_t nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *info) {
  ENTER(device);
  if (info->version != (sizeof(struct memory_v2) | 2u << 24)) return VERSION;
  GIVE(device, MEM_TOTAL, unsigned long long, &info->total);
  GIVE(device, MEM_RESERVED, unsigned long long, &info->reserved);
  GIVE(device, MEM_USED, unsigned long long, &info->used);
  info->free = info->total - info->used - info->reserved;
  return OK;
}

struct temperature_v1 { unsigned version; int sensor; int celsius; };
ret_t nvmlDeviceGetTemperatureV(struct device *device, struct temperature_v1 *info) {
  ENTER(device);
  if (info->version != (sizeof(struct temperature_v1) | 1u << 24)) return VERSION;
  GIVE(device, TEMPERATURE, int, &info->celsius);
  return OK;
}

struct margin_v1 { unsigned version; int celsius; };
ret_t nvmlDeviceGetMarginTemperature(struct device *device, struct margin_v1 *info) {
  ENTER(device);
  if (info->version != (sizeof(struct margin_v1) | 1u << 24)) return VERSION;
  GIVE(device, MARGIN, int, &info->celsius);
  return OK;
}

ret_t nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons) {
  ENTER(device);
  GIVE(device, REASONS, unsigned long long, reasons);
  return OK;
}

ret_t nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process_info *infos) {
  ENTER(device);
  return list(device, count, infos);
}

struct support { unsigned version, supported; };
ret_t nvmlGpmQueryDeviceSupport(struct device *device, struct support *support) {
  ENTER(device);
  if (support->version != 1) return VERSION;
  support->supported = device->value[GPM] != 0;
  return OK;
}

struct sample { struct device *device; long number; };
ret_t nvmlGpmSampleAlloc(struct sample **sample) {
  ENTER(NULL);
  *sample = calloc(1, sizeof(struct sample));
  buffers++;
  return OK;
}

ret_t nvmlGpmSampleFree(struct sample *sample) {
  ENTER(NULL);
  free(sample);
  buffers--;
  return OK;
}

static long samples_taken;
static ret_t take(struct device *device, struct sample *sample) {
  if (!sample || device->value[GPM] == 0) return NOT_SUPPORTED;
  sample->device = device;
  sample->number = ++samples_taken;
  return OK;
}

ret_t nvmlGpmSampleGet(struct device *device, struct sample *sample) {
  ENTER(device);
  if (device->is_mig || device->mig_mode) return INVALID;
  return take(device, sample);
}

ret_t nvmlGpmMigSampleGet(struct device *device, unsigned gpu_instance, struct sample *sample) {
  ENTER(device);
  for (int i = 0; i < device_count; i++)
    if (devices[i].is_mig && devices[i].parent == device - devices && devices[i].gpu_instance == gpu_instance)
      return take(&devices[i], sample);
  return INVALID;
}

struct gpm_metric { unsigned id; ret_t result; double value; const char *names[3]; };
struct gpm_metrics { unsigned version, count; struct sample *first, *second; struct gpm_metric metrics[1]; };
ret_t nvmlGpmMetricsGet(struct gpm_metrics *question) {
  static const struct { unsigned id; enum key key; } known[] = {
    {1, GPM_GRAPHICS}, {2, GPM_SM}, {3, GPM_OCCUPANCY}, {5, GPM_TENSOR}, {10, GPM_DRAM}, {20, GPM_TX}, {21, GPM_RX}
  };
  ENTER(question->second ? question->second->device : NULL);
  if (question->version != 1) return VERSION;
  if (!question->first || !question->second || question->first->number >= question->second->number) return INVALID;
  for (unsigned i = 0; i < question->count; i++) {
    struct gpm_metric *metric = &question->metrics[i];
    metric->result = NOT_SUPPORTED;
    for (unsigned j = 0; j < sizeof known / sizeof known[0]; j++)
      if (known[j].id == metric->id) metric->result = number(question->second->device, known[j].key, &metric->value);
  }
  return OK;
}

#endif

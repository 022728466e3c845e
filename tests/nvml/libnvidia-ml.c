/* An NVML whose answers a test writes: the real bindings load it as libnvidia-ml.so.1.
 *
 * The file named by NVML_SCENARIO is read anew at every call, so a test may change it under way. Its lines are
 * "key value" or "key !code" (an nvmlReturn_t). "driver !9" makes everything fail; "gpus 2" is the count; a figure of
 * GPU 0 is "gpu0.power 651000", of its MIG instance 1 "gpu0.mig1.power …"; "gpu0 !15" fails all of GPU 0.
 * What is not written is not supported (3), as with NVML itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { char key[32]; int instance; } Device;
typedef struct { char key[32]; double taken; long turn; } Sample;
typedef struct { unsigned id; int code; double value; char *info[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } MetricsGet;

static Device devices[64];
static long turns;

static int lookup(const char *key, char *value) {
    char line[256], name[96];
    int code = NOT_SUPPORTED;
    FILE *file = fopen(getenv("NVML_SCENARIO") ? getenv("NVML_SCENARIO") : "", "r");
    if (!file) return 9;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%95s %95[^\n]", name, value) == 2 && !strcmp(name, key)) {
            code = value[0] == '!' ? atoi(value + 1) : OK;
            break;
        }
    fclose(file);
    return code;
}

static int text(Device *device, const char *figure, char *value) {
    char key[96];
    int code = lookup("driver", value);
    if (code != OK && code != NOT_SUPPORTED) return code;
    if (!device) return lookup(figure, value);
    snprintf(key, sizeof key, "%.4s", device->key);
    code = lookup(key, value);
    if (code != OK && code != NOT_SUPPORTED) return code;
    snprintf(key, sizeof key, "%s.%s", device->key, figure);
    return lookup(key, value);
}

static int number(Device *device, const char *figure, double *value) {
    char found[96];
    int code = text(device, figure, found);
    if (code == OK) *value = atof(found);
    return code;
}

static int whole(Device *device, const char *figure, unsigned *value) {
    double found;
    int code = number(device, figure, &found);
    if (code == OK) *value = (unsigned)found;
    return code;
}

static int wide(Device *device, const char *figure, unsigned long long *value) {
    double found;
    int code = number(device, figure, &found);
    if (code == OK) *value = (unsigned long long)found;
    return code;
}

static int words(Device *device, const char *figure, char *value, unsigned size) {
    char found[96];
    int code = text(device, figure, found);
    if (code == OK) snprintf(value, size, "%s", found);
    return code;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int nvmlInitWithFlags(unsigned flags) {
    char value[96];
    int code = lookup("driver", value);
    (void)flags;
    return code == NOT_SUPPORTED ? OK : code;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "scripted error"; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { return words(NULL, "version", v, n); }
int nvmlDeviceGetCount_v2(unsigned *count) { return whole(NULL, "gpus", count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **handle) {
    char value[96];
    Device *device = &devices[index * 8];
    snprintf(device->key, sizeof device->key, "gpu%u", index);
    device->instance = -1;
    *handle = device;
    return text(device, "uuid", value);
}

int nvmlDeviceGetUUID(Device *d, char *v, unsigned n) { return words(d, "uuid", v, n); }
int nvmlDeviceGetName(Device *d, char *v, unsigned n) { return words(d, "name", v, n); }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *v) { (void)sensor; return whole(d, "temperature", v); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *v) { return whole(d, "power", v); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *v) { return whole(d, "power_limit", v); }
int nvmlDeviceGetClockInfo(Device *d, int type, unsigned *v) { return type == 1 ? whole(d, "sm_clock", v) : INVALID; }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *v) { return wide(d, "energy", v); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *v) { return wide(d, "throttle", v); }
#ifndef OLD_DRIVER /* the new name came with driver 535 */
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *v) { return wide(d, "throttle", v); }
#endif

int nvmlDeviceGetUtilizationRates(Device *d, unsigned *v) {
    v[1] = 0;
    return whole(d, "utilization", v);
}

int nvmlDeviceGetMemoryInfo(Device *d, unsigned long long *v) {
    int code = wide(d, "memory_total", &v[0]);
    if (code == OK) code = wide(d, "memory_used", &v[2]);
    v[1] = v[0] - v[2];
    return code;
}

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    int code = whole(d, "mig", current);
    *pending = *current;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *v) { return whole(d, "mig_places", v); }
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *v) { *v = (unsigned)d->instance; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *parent, unsigned place, Device **handle) {
    char value[96];
    Device made = {.instance = (int)place}, *device = parent + 1 + place;
    snprintf(made.key, sizeof made.key, "%.8s.mig%u", parent->key, place);
    *device = made;
    *handle = device;
    return text(device, "uuid", value) == OK ? OK : NOT_FOUND;
}

int nvmlGpmQueryDeviceSupport(Device *d, unsigned *support) { return whole(d, "gpm", &support[1]); }
int nvmlGpmSampleAlloc(Sample **sample) { return (*sample = calloc(1, sizeof **sample)) ? OK : 20; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }

static int take(Device *device, Sample *sample) {
    char value[96];
    int code = text(device, "uuid", value);
    snprintf(sample->key, sizeof sample->key, "%s", device->key);
    sample->taken = now();
    sample->turn = ++turns;
    return code;
}
int nvmlGpmSampleGet(Device *d, Sample *sample) {
    unsigned mig;
    return whole(d, "mig", &mig) == OK && mig ? NOT_SUPPORTED : take(d, sample);
}
int nvmlGpmMigSampleGet(Device *parent, unsigned instance, Sample *sample) { return take(parent + 1 + instance, sample); }

int nvmlGpmMetricsGet(MetricsGet *request) {
    Sample *first = request->first, *second = request->second;
    if (request->version != 1 || !first->turn || second->turn <= first->turn) return INVALID;
    if (strcmp(first->key, second->key) || second->taken - first->taken < 0.1) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        char figure[32];
        Device device = {.instance = -1};
        snprintf(device.key, sizeof device.key, "%s", second->key);
        snprintf(figure, sizeof figure, "gpm%u", request->metrics[i].id);
        request->metrics[i].code = number(&device, figure, &request->metrics[i].value);
    }
    return OK;
}

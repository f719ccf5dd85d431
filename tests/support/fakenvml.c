/* A stand-in for NVIDIA's libnvidia-ml, so that the real nvidia-ml-py runs in tests on a machine without a GPU.
 *
 * Every field of every device is a different number: reading the wrong field, device or unit gives a wrong value.
 * The numbers are base + device * step; tests/nvml_standin.py repeats them.
 * Any call can be made to fail or to wait, by standin_fault(). What a driver may lack is renamed away when compiling
 * (gcc -DnvmlDeviceGetTemperatureV=absent): then the symbol is not in the library.
 * Like the real one, it answers "uninitialized" before nvmlInit, after the last nvmlShutdown, and in a forked child,
 * and handles from before a new nvmlInit are void.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_GPUS 8
#define MOST_SLOTS 7 /* MIG instances lie in slots, and the slots have holes */
#define MOST_FAULTS 32
#define MOST_NAMES 64
#define GENERATIONS 16
#define MOST_PROCESSES 16

/* Readings that standin_set can change while a test runs. */
enum { UTIL, MEMORY, POWER, CLOCK, TEMPERATURE, THROTTLE, ENERGY, ECC, ECC_FATAL, PCIE, NVLINK, ACTIVE, KINDS };
static const char *const kind_names[KINDS] = {"util",   "memory", "power",     "clock", "temperature", "throttle",
                                              "energy", "ecc",    "ecc_fatal", "pcie",  "nvlink",      "active"};

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH = 25,
};

typedef struct {
    int gpu, slot, generation; /* slot -1: the whole GPU */
} Handle;

typedef struct {
    char function[64];
    int gpu, code;
    long delay_us, skip, count;
} Fault;

typedef struct {
    unsigned pid, sm;
    unsigned long long memory;
} Listed;

static struct {
    int gpus, users, owner, generation, faults, called;
    int instances[MOST_GPUS]; /* -1: this GPU knows no MIG, 0: MIG is off, n: n - 1 instances */
    int capability[MOST_GPUS][2];
    unsigned own, other;   /* process ids that are told; 0: this process's own, and none */
    int memory_told;       /* whether their memory is */
    char name[MOST_GPUS][64];
    Fault fault[MOST_FAULTS];
    char called_name[MOST_NAMES][64];
    long called_times[MOST_NAMES];
    int is_set[MOST_GPUS][KINDS];
    unsigned long long set[MOST_GPUS][KINDS];
    int listed; /* whether standin_process names the processes, instead of `own` and `other` */
    int listed_count[MOST_GPUS];
    Listed process[MOST_GPUS][MOST_PROCESSES];
} state;
static Handle handles[GENERATIONS][MOST_GPUS][MOST_SLOTS + 1];

/* What tests say to the stand-in. */

EXPORT void standin_reset(int gpus) {
    int generation = state.generation;
    memset(&state, 0, sizeof state);
    state.generation = generation;
    state.gpus = gpus;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        state.instances[gpu] = -1;
        state.capability[gpu][0] = 9;
        state.other = 1u << 30, state.memory_told = 1;
        snprintf(state.name[gpu], sizeof state.name[gpu], "Standin H%d00", gpu + 1);
    }
}

EXPORT void standin_name(int gpu, const char *name) { snprintf(state.name[gpu], sizeof state.name[gpu], "%s", name); }

EXPORT void standin_mig(int gpu, int instances) { state.instances[gpu] = instances + 1; }

EXPORT void standin_capability(int gpu, int major, int minor) {
    state.capability[gpu][0] = major;
    state.capability[gpu][1] = minor;
}

/* The processes on every GPU: this one, known by the number `own` (0: by its own), and one `other` (0: none). */
EXPORT void standin_processes(unsigned own, unsigned other, int memory_told) {
    state.own = own, state.other = other, state.memory_told = memory_told;
}

/* The calls of `function` for `gpu` (-1: any) give `code` after `delay_us`: all but the first `skip`, `count` times
 * (-1: for ever). */
EXPORT void standin_fault(const char *function, int gpu, int code, long delay_us, long skip, long count) {
    Fault *fault = &state.fault[state.faults++];
    snprintf(fault->function, sizeof fault->function, "%s", function);
    fault->gpu = gpu, fault->code = code, fault->delay_us = delay_us, fault->skip = skip, fault->count = count;
}

EXPORT void standin_clear_faults(void) { state.faults = 0; }

EXPORT void standin_set(int gpu, const char *name, unsigned long long value) {
    for (int kind = 0; kind < KINDS; kind++)
        if (!strcmp(kind_names[kind], name)) state.is_set[gpu][kind] = 1, state.set[gpu][kind] = value;
}

/* From the first call on, each GPU has the processes that are named here; pid 0 removes those of this GPU. */
EXPORT void standin_process(int gpu, unsigned pid, unsigned long long memory, unsigned sm) {
    state.listed = 1;
    if (!pid)
        state.listed_count[gpu] = 0;
    else if (state.listed_count[gpu] < MOST_PROCESSES)
        state.process[gpu][state.listed_count[gpu]++] = (Listed){pid, sm, memory};
}

EXPORT long standin_calls(const char *function) {
    for (int i = 0; i < state.called; i++)
        if (!strcmp(state.called_name[i], function)) return state.called_times[i];
    return 0;
}

/* What every call begins with. */

static void count_call(const char *function) {
    int i = 0;
    while (i < state.called && strcmp(state.called_name[i], function)) i++;
    if (i == MOST_NAMES) return;
    if (i == state.called) snprintf(state.called_name[state.called++], 64, "%s", function);
    state.called_times[i]++;
}

static int enter(const char *function, int gpu) {
    int code = SUCCESS;
    long delay_us = 0;
    count_call(function);
    for (int i = 0; i < state.faults; i++) {
        Fault *fault = &state.fault[i];
        if (strcmp(fault->function, function) || (fault->gpu >= 0 && fault->gpu != gpu)) continue;
        if (fault->skip > 0) {
            fault->skip--;
        } else if (fault->count != 0) {
            if (fault->count > 0) fault->count--;
            code = fault->code, delay_us = fault->delay_us;
        }
    }
    if (delay_us) usleep(delay_us);
    if (code) return code;
    if (!strcmp(function, "nvmlInitWithFlags")) return SUCCESS;
    return state.users > 0 && state.owner == getpid() ? SUCCESS : UNINITIALIZED;
}

static int enter_device(const char *function, const Handle *handle) {
    int code = enter(function, handle ? handle->gpu : -1);
    if (code) return code;
    return handle && handle->generation == state.generation ? SUCCESS : INVALID_ARGUMENT;
}

#define ENTER(function, handle)                             \
    {                                                       \
        int code_ = enter_device(#function, handle);        \
        if (code_) return code_;                            \
    }
#define WHOLE_ONLY(handle) \
    if (handle->slot >= 0) return NOT_SUPPORTED;

static unsigned long long number(const Handle *handle, unsigned long long base, unsigned long long step) {
    return base + handle->gpu * step;
}

static unsigned long long reading(const Handle *handle, int kind, unsigned long long base, unsigned long long step) {
    return state.is_set[handle->gpu][kind] ? state.set[handle->gpu][kind] : number(handle, base, step);
}

/* The library. */

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter("nvmlInitWithFlags", -1);
    if (code) return code;
    if (state.users == 0 || state.owner != getpid()) {
        state.users = 0, state.owner = getpid();
        state.generation = (state.generation + 1) % GENERATIONS;
        for (int gpu = 0; gpu < MOST_GPUS; gpu++)
            for (int slot = 0; slot <= MOST_SLOTS; slot++)
                handles[state.generation][gpu][slot] = (Handle){gpu, slot - 1, state.generation};
    }
    state.users++;
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    int code = enter("nvmlShutdown", -1);
    if (code) return code;
    state.users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) { return code == 777 ? "Made Up" : "Unknown Error"; }

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    int code = enter("nvmlSystemGetDriverVersion", -1);
    if (code) return code;
    snprintf(text, length, "999.10.standin");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter("nvmlDeviceGetCount_v2", -1);
    if (code) return code;
    *count = state.gpus;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **handle) {
    int code = enter("nvmlDeviceGetHandleByIndex_v2", index);
    if (code) return code;
    if ((int)index >= state.gpus) return INVALID_ARGUMENT;
    *handle = &handles[state.generation][index][0];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(Handle *handle, char *text, unsigned length) {
    ENTER(nvmlDeviceGetName, handle);
    snprintf(text, length, handle->slot < 0 ? "%s" : "%s MIG 1g.18gb", state.name[handle->gpu]);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(Handle *handle, char *text, unsigned length) {
    ENTER(nvmlDeviceGetUUID, handle);
    if (handle->slot < 0)
        snprintf(text, length, "GPU-%dabcdef0-0000-0000-0000-000000000000", handle->gpu);
    else
        snprintf(text, length, "MIG-%d%dbcdef0-0000-0000-0000-000000000000", handle->gpu, handle->slot);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(Handle *handle, int *major, int *minor) {
    ENTER(nvmlDeviceGetCudaComputeCapability, handle);
    *major = state.capability[handle->gpu][0], *minor = state.capability[handle->gpu][1];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNumGpuCores(Handle *handle, unsigned *cores) {
    ENTER(nvmlDeviceGetNumGpuCores, handle);
    *cores = number(handle, 16896, 1280);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(Handle *handle, unsigned *limit_mw) {
    ENTER(nvmlDeviceGetEnforcedPowerLimit, handle);
    *limit_mw = number(handle, 700500, 10000);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(Handle *handle, unsigned *limit_mw) {
    ENTER(nvmlDeviceGetPowerManagementDefaultLimit, handle);
    *limit_mw = number(handle, 800500, 20000);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxClockInfo(Handle *handle, unsigned type, unsigned *clock_mhz) {
    ENTER(nvmlDeviceGetMaxClockInfo, handle);
    static const unsigned base[] = {2001, 1980, 3201, 1802}; /* graphics, SM, memory, video */
    if (type > 3) return INVALID_ARGUMENT;
    *clock_mhz = number(handle, base[type], 30);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(Handle *handle, unsigned *generation) {
    ENTER(nvmlDeviceGetMaxPcieLinkGeneration, handle);
    *generation = number(handle, 15, 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxPcieLinkWidth(Handle *handle, unsigned *width) {
    ENTER(nvmlDeviceGetMaxPcieLinkWidth, handle);
    *width = number(handle, 31, 1);
    return SUCCESS;
}

/* Sensors. */

typedef struct {
    unsigned gpu, memory;
} Utilization;

EXPORT int nvmlDeviceGetUtilizationRates(Handle *handle, Utilization *rates) {
    ENTER(nvmlDeviceGetUtilizationRates, handle);
    WHOLE_ONLY(handle);
    rates->gpu = reading(handle, UTIL, 61, 3), rates->memory = number(handle, 22, 3);
    return SUCCESS;
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

EXPORT int nvmlDeviceGetMemoryInfo(Handle *handle, Memory *memory) {
    ENTER(nvmlDeviceGetMemoryInfo, handle);
    unsigned long long part = handle->slot + 1;
    memory->total = number(handle, 150000000000ull, 7000000000ull) - part * 100000000000ull;
    memory->free = number(handle, 110000000000ull, 6000000000ull);
    memory->used = number(handle, 40000000000ull, 1000000000ull) + part;
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle *handle, MemoryV2 *memory) {
    ENTER(nvmlDeviceGetMemoryInfo_v2, handle);
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = number(handle, 150000000000ull, 7000000000ull);
    memory->reserved = number(handle, 600000000ull, 10000000ull);
    memory->free = number(handle, 110000000000ull, 6000000000ull);
    memory->used = reading(handle, MEMORY, 39400000000ull, 990000000ull) + handle->slot + 1;
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, code;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
} FieldValue;

EXPORT int nvmlDeviceGetFieldValues(Handle *handle, int count, FieldValue *values) {
    ENTER(nvmlDeviceGetFieldValues, handle);
    WHOLE_ONLY(handle);
    for (int i = 0; i < count; i++) {
        FieldValue *value = &values[i];
        value->type = 1, value->code = SUCCESS;
        if (value->field == 186 && value->scope == 0)
            value->value.u = reading(handle, POWER, 512345, 1111); /* power, instant, mW */
        else if (value->field == 185)
            value->value.u = number(handle, 498765, 1222); /* power, average of a second, mW */
        else if (value->field == 74)
            value->value.ull = number(handle, 22345678901ull, 3000000000ull); /* held down by power, ns */
        else if (value->field == 75)
            value->value.ull = number(handle, 8789012345ull, 5000000000ull); /* held down by heat, ns */
        else if (value->field == 197 || value->field == 198) /* PCIe: sent, received */
            value->value.ull = reading(handle, PCIE, 5000000ull, 1000ull) + (value->field - 197) * 3000000ull;
        else if ((value->field == 138 || value->field == 139) && value->scope == 0xffffffffu) /* NVLink, KiB */
            value->value.ull = reading(handle, NVLINK, 8000000ull, 1000ull) + (value->field - 138) * 2000000ull;
        else
            value->code = NOT_SUPPORTED;
        /* A fault of this name is reported as the driver does it: for the field, in a call that succeeds. */
        int code = enter("field", handle->gpu);
        if (code) value->code = code;
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(Handle *handle, unsigned uncorrected, unsigned since_ever,
                                       unsigned long long *errors) {
    ENTER(nvmlDeviceGetTotalEccErrors, handle);
    WHOLE_ONLY(handle);
    if (uncorrected > 1 || since_ever) return INVALID_ARGUMENT;
    *errors = uncorrected ? reading(handle, ECC_FATAL, 1007, 100) : reading(handle, ECC, 7, 100);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerUsage(Handle *handle, unsigned *power_mw) {
    ENTER(nvmlDeviceGetPowerUsage, handle);
    WHOLE_ONLY(handle);
    *power_mw = number(handle, 487654, 1333);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(Handle *handle, unsigned type, unsigned *clock_mhz) {
    ENTER(nvmlDeviceGetClockInfo, handle);
    WHOLE_ONLY(handle);
    static const unsigned base[] = {1601, 1755, 2619, 1402}; /* graphics, SM, memory, video */
    if (type > 3) return INVALID_ARGUMENT;
    *clock_mhz = type == 1 ? reading(handle, CLOCK, base[type], 10) : number(handle, base[type], 10);
    return SUCCESS;
}

typedef struct {
    unsigned version, sensor;
    int temperature_c;
} TemperatureV;

EXPORT int nvmlDeviceGetTemperatureV(Handle *handle, TemperatureV *temperature) {
    ENTER(nvmlDeviceGetTemperatureV, handle);
    WHOLE_ONLY(handle);
    if (temperature->version != (sizeof *temperature | 1u << 24) || temperature->sensor) return INVALID_ARGUMENT;
    temperature->temperature_c = reading(handle, TEMPERATURE, 43, 1);
    return SUCCESS;
}

/* No sensor of gpulab asks this: tests add one that does. */
EXPORT int nvmlDeviceGetFanSpeed(Handle *handle, unsigned *percent) {
    ENTER(nvmlDeviceGetFanSpeed, handle);
    *percent = number(handle, 37, 5);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(Handle *handle, unsigned sensor, unsigned *temperature_c) {
    ENTER(nvmlDeviceGetTemperature, handle);
    WHOLE_ONLY(handle);
    if (sensor) return INVALID_ARGUMENT;
    *temperature_c = reading(handle, TEMPERATURE, 52, 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Handle *handle, unsigned long long *bits) {
    ENTER(nvmlDeviceGetCurrentClocksEventReasons, handle);
    WHOLE_ONLY(handle);
    *bits = reading(handle, THROTTLE, 0x4, 0x100);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Handle *handle, unsigned long long *bits) {
    ENTER(nvmlDeviceGetCurrentClocksThrottleReasons, handle);
    WHOLE_ONLY(handle);
    *bits = number(handle, 0x8, 0x100);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(Handle *handle, unsigned long long *energy_mj) {
    ENTER(nvmlDeviceGetTotalEnergyConsumption, handle);
    WHOLE_ONLY(handle);
    *energy_mj = reading(handle, ENERGY, 987654321ull, 1000000ull);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Handle *handle, unsigned *generation) {
    ENTER(nvmlDeviceGetCurrPcieLinkGeneration, handle);
    WHOLE_ONLY(handle);
    *generation = number(handle, 11, 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Handle *handle, unsigned *width) {
    ENTER(nvmlDeviceGetCurrPcieLinkWidth, handle);
    WHOLE_ONLY(handle);
    *width = number(handle, 21, 1);
    return SUCCESS;
}

typedef struct {
    unsigned long long reference_us, held_ns;
} ViolationTime;

EXPORT int nvmlDeviceGetViolationStatus(Handle *handle, unsigned policy, ViolationTime *time) {
    ENTER(nvmlDeviceGetViolationStatus, handle);
    WHOLE_ONLY(handle);
    time->reference_us = 99;
    time->held_ns = number(handle, (policy + 1) * 12345678901ull, (policy + 2) * 1000000000ull);
    return policy < 12 ? SUCCESS : INVALID_ARGUMENT;
}

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} Process;

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle *handle, unsigned *count, Process *processes) {
    ENTER(nvmlDeviceGetComputeRunningProcesses_v3, handle);
    unsigned room = *count;
    *count = state.listed ? state.listed_count[handle->gpu] : state.other ? 2 : 1;
    if (room < *count) return INSUFFICIENT_SIZE;
    if (state.listed) {
        for (unsigned i = 0; i < *count; i++)
            processes[i] = (Process){state.process[handle->gpu][i].pid, state.process[handle->gpu][i].memory, 0, 0};
        return SUCCESS;
    }
    unsigned own = state.own ? state.own : (unsigned)getpid();
    processes[0] = (Process){own, number(handle, 32100000000ull, 880000000ull) * state.memory_told, 0, 0};
    if (state.other)
        processes[1] = (Process){state.other, number(handle, 7300000000ull, 110000000ull) * state.memory_told, 0, 0};
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
} Use;

/* Each process is told of twice, at different times; of times before `since` nothing is told. */
EXPORT int nvmlDeviceGetProcessUtilization(Handle *handle, Use *uses, unsigned *count, unsigned long long since_us) {
    ENTER(nvmlDeviceGetProcessUtilization, handle);
    WHOLE_ONLY(handle);
    unsigned room = *count, own = state.own ? state.own : (unsigned)getpid();
    *count = state.listed ? state.listed_count[handle->gpu] : state.other ? 4 : 2;
    if (since_us < 1000000ull * 1000000000ull) return INVALID_ARGUMENT; /* asked in another unit than microseconds */
    if (state.listed && !*count) return NOT_FOUND;
    if (!uses || room < *count) return INSUFFICIENT_SIZE;
    if (state.listed) {
        for (unsigned i = 0; i < *count; i++)
            uses[i] = (Use){state.process[handle->gpu][i].pid, since_us + 100, state.process[handle->gpu][i].sm, 0, 0, 0};
        return SUCCESS;
    }
    uses[0] = (Use){own, since_us + 100, number(handle, 54, 1), 13, 0, 0};
    uses[1] = (Use){own, since_us + 200, number(handle, 56, 1), 14, 0, 0};
    if (state.other) {
        uses[2] = (Use){state.other, since_us + 100, number(handle, 31, 1), 15, 0, 0};
        uses[3] = (Use){state.other, since_us + 200, number(handle, 35, 1), 16, 0, 0};
    }
    return SUCCESS;
}

/* Measures for 20 ms in the real library: nobody may call it between samples. */
EXPORT int nvmlDeviceGetPcieThroughput(Handle *handle, unsigned counter, unsigned *kb_per_s) {
    ENTER(nvmlDeviceGetPcieThroughput, handle);
    *kb_per_s = number(handle, 12345, 17) + counter;
    return SUCCESS;
}

/* MIG: instances lie in every second slot. */

EXPORT int nvmlDeviceGetMigMode(Handle *handle, unsigned *now, unsigned *later) {
    ENTER(nvmlDeviceGetMigMode, handle);
    if (state.instances[handle->gpu] < 0) return NOT_SUPPORTED;
    *now = *later = state.instances[handle->gpu] > 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(Handle *handle, unsigned *count) {
    ENTER(nvmlDeviceGetMaxMigDeviceCount, handle);
    *count = MOST_SLOTS;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, unsigned index, Handle **instance) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, handle);
    if (index % 2 == 0 || (int)index / 2 >= state.instances[handle->gpu] - 1) return NOT_FOUND;
    *instance = &handles[state.generation][handle->gpu][index + 1];
    return SUCCESS;
}

typedef struct {
    unsigned multiprocessors, other[7];
    unsigned long long memory_mb;
} Attributes;

EXPORT int nvmlDeviceGetAttributes_v2(Handle *handle, Attributes *attributes) {
    ENTER(nvmlDeviceGetAttributes_v2, handle);
    if (handle->slot < 0) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = number(handle, 16, 2);
    return SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(Handle *handle, unsigned *is_mig) {
    ENTER(nvmlDeviceIsMigDeviceHandle, handle);
    *is_mig = handle->slot >= 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *handle, Handle **board) {
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle);
    if (handle->slot < 0) return INVALID_ARGUMENT;
    *board = &handles[state.generation][handle->gpu][0];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(Handle *handle, unsigned *instance) {
    ENTER(nvmlDeviceGetGpuInstanceId, handle);
    if (handle->slot < 0) return INVALID_ARGUMENT;
    *instance = handle->slot + 20;
    return SUCCESS;
}

/* Performance counters (GPM): the difference of two samples; an instance has its own. */

typedef struct {
    int gpu, instance, taken;
} GpmSample;

typedef struct {
    unsigned id;
    int code;
    double value;
    const char *info[3];
} GpmMetric;

typedef struct {
    unsigned version, count;
    GpmSample *before, *after;
    GpmMetric metrics[477];
} GpmRequest;

/* Xid errors: standin_xid puts one in the queue of those who registered the GPU. */

typedef struct {
    Handle *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

static struct {
    int open, registered[MOST_GPUS], waiting, gpu[16];
    unsigned long long number[16];
} xids;

EXPORT void standin_xid(int gpu, unsigned long long number) {
    if (xids.registered[gpu] && xids.waiting < 16)
        xids.gpu[xids.waiting] = gpu, xids.number[xids.waiting++] = number;
}

EXPORT int nvmlEventSetCreate(void **set) {
    int code = enter("nvmlEventSetCreate", -1);
    if (code) return code;
    memset(&xids, 0, sizeof xids);
    xids.open = 1;
    *set = &xids;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(Handle *handle, unsigned long long types, void *set) {
    ENTER(nvmlDeviceRegisterEvents, handle);
    if (set != &xids || types != 8) return INVALID_ARGUMENT; /* 8: critical Xid errors */
    xids.registered[handle->gpu] = 1;
    return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    int code = enter("nvmlEventSetWait_v2", -1);
    if (code) return code;
    if (set != &xids || timeout_ms) return INVALID_ARGUMENT; /* the watch must not wait */
    if (!xids.waiting) return 10;
    memset(event, 0, sizeof *event);
    event->device = &handles[state.generation][xids.gpu[0]][0];
    event->type = 8, event->data = xids.number[0];
    xids.waiting--;
    memmove(xids.gpu, xids.gpu + 1, sizeof xids.gpu - sizeof xids.gpu[0]);
    memmove(xids.number, xids.number + 1, sizeof xids.number - sizeof xids.number[0]);
    return SUCCESS;
}

static int gpm_samples; /* allocated and not freed */
EXPORT int standin_gpm_samples(void) { return gpm_samples; }

EXPORT int nvmlGpmSampleAlloc(GpmSample **sample) {
    int code = enter("nvmlGpmSampleAlloc", -1);
    if (code) return code;
    *sample = calloc(1, sizeof **sample);
    gpm_samples++;
    return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    int code = enter("nvmlGpmSampleFree", -1);
    if (code) return code;
    free(sample);
    gpm_samples--;
    return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(Handle *handle, GpmSample *sample) {
    ENTER(nvmlGpmSampleGet, handle);
    WHOLE_ONLY(handle);
    *sample = (GpmSample){handle->gpu, -1, 1};
    return SUCCESS;
}

EXPORT int nvmlGpmMigSampleGet(Handle *handle, unsigned instance, GpmSample *sample) {
    ENTER(nvmlGpmMigSampleGet, handle);
    WHOLE_ONLY(handle);
    *sample = (GpmSample){handle->gpu, (int)instance, 1};
    return SUCCESS;
}

EXPORT int nvmlGpmMetricsGet(GpmRequest *request) {
    int code = enter("nvmlGpmMetricsGet", request->after->gpu);
    if (code) return code;
    if (request->version != 1 || !request->before->taken || request->before->gpu != request->after->gpu)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        GpmMetric *metric = &request->metrics[i];
        int gpu = request->after->gpu, instance = request->after->instance;
        metric->code = SUCCESS;
        if (metric->id == 2) /* SM_UTIL, percent */
            metric->value = (state.is_set[gpu][ACTIVE] ? (double)state.set[gpu][ACTIVE] : 31.5 + gpu) + (instance >= 0);
        else if (metric->id == 5) /* ANY_TENSOR_UTIL */
            metric->value = 12.25 + gpu;
        else if (metric->id == 10) /* DRAM_BW_UTIL */
            metric->value = 44.75 + gpu;
        else
            metric->code = NOT_SUPPORTED;
    }
    return SUCCESS;
}

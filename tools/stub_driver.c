/* A stub NVIDIA driver: it reports GPUs but cannot compute.

       cc -shared -fPIC -o FOLDER/libcuda.so.1 tools/stub_driver.c
       LD_LIBRARY_PATH=FOLDER STUB_GPUS='GPU-UUID|NVIDIA H200|9.0|150754820096;...' python ...

   Without STUB_GPUS it has no GPU: MXNet's CUDA build can be imported and computes on CPU contexts.
   CUDA_VISIBLE_DEVICES works as NVIDIA documents it: numbers or unique beginnings of UUIDs; their order becomes the
   order of the GPUs, and everything after an unknown entry is hidden. A process sees at most one MIG instance.
   If STUB_CUINIT is set, cuInit fails with that code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define MOST 64

struct gpu { char uuid[64], name[256]; int major, minor; size_t memory; };
static struct gpu gpus[MOST];
static int order[MOST], num_gpus, num_visible;

static void read_gpus(void) {
    const char *text = getenv("STUB_GPUS");
    for (num_gpus = 0; text && *text && num_gpus < MOST; num_gpus++) {
        struct gpu *g = &gpus[num_gpus];
        if (sscanf(text, "%63[^|]|%255[^|]|%d.%d|%zu", g->uuid, g->name, &g->major, &g->minor, &g->memory) != 5) {
            fprintf(stderr, "STUB_GPUS: 'UUID|NAME|MAJOR.MINOR|BYTES;...' expected\n");
            abort();
        }
        text = strchr(text, ';');
        if (text) text++;
    }
}

static int find(const char *item) { /* the number of a GPU, -1 for none */
    char *end;
    long number = strtol(item, &end, 10);
    int i, found = -1;
    if (end != item && *end == '\0') return number >= 0 && number < num_gpus ? (int)number : -1;
    for (i = 0; i < num_gpus; i++)
        if (*item && strncmp(gpus[i].uuid, item, strlen(item)) == 0) {
            if (found >= 0) return -1;
            found = i;
        }
    return found;
}

static int see(int i) { /* returns 1 if further GPUs may follow */
    order[num_visible++] = i;
    return strncmp(gpus[i].uuid, "MIG-", 4) != 0;
}

int cuInit(unsigned flags) {
    const char *code = getenv("STUB_CUINIT"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int i;
    (void)flags;
    if (code) return atoi(code);
    read_gpus();
    num_visible = 0;
    if (visible) {
        char list[4096], *item;
        snprintf(list, sizeof list, "%s", visible);
        for (item = strtok(list, ","); item && num_visible < MOST && (i = find(item)) >= 0 && see(i); item = strtok(NULL, ",")) {}
    } else {
        for (i = 0; i < num_gpus && see(i); i++) {}
    }
    return num_visible ? 0 : NO_DEVICE;
}

#define GPU_OR_FAIL(device) if (device < 0 || device >= num_visible) return INVALID_DEVICE
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = num_visible; return 0; }
int cuDeviceGet(int *device, int i) {
    if (num_visible == 0) return NO_DEVICE;
    GPU_OR_FAIL(i);
    *device = i;
    return 0;
}
int cuDeviceGetName(char *name, int size, int device) {
    GPU_OR_FAIL(device);
    snprintf(name, size, "%s", gpus[order[device]].name);
    return 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *digit;
    int i = 0;
    GPU_OR_FAIL(device);
    memset(uuid, 0, 16);
    for (digit = gpus[order[device]].uuid + 4; *digit && i < 32; digit++) /* after GPU- or MIG- */
        if (*digit != '-') {
            uuid[i / 2] = uuid[i / 2] * 16 + (*digit <= '9' ? *digit - '0' : *digit - 'a' + 10);
            i++;
        }
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    GPU_OR_FAIL(device);
    *value = attribute == 75 ? gpus[order[device]].major : attribute == 76 ? gpus[order[device]].minor : -1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    GPU_OR_FAIL(device);
    *bytes = gpus[order[device]].memory;
    return 0;
}

/* Other functions that libmxnet.so of mxnet-cu112 needs */
#define NOTHING(name) int name(void) { return NO_DEVICE; }
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuGetErrorString)
NOTHING(cuGraphKernelNodeGetParams)
NOTHING(cuGraphNodeGetType)
NOTHING(cuLaunchKernel)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleLoadDataEx)
NOTHING(cuModuleUnload)

/* A CUDA runtime and driver for machines without a GPU: memory is the host's, a kernel does nothing.
 *
 * With it the real CUDA provider of onnxruntime loads, places its nodes, copies, captures and replays.
 * What comes out is whatever was in memory: it shows placement and control flow, never numbers.
 * tests/cuda_stub.py builds it, for the symbols that a wheel asks for; all others answer 0.
 *
 * XLT_STUB_GPUS: how many devices there are (1). XLT_STUB_MEMORY: bytes of each (8 GiB).
 * XLT_STUB_CUDA: the version that the driver speaks (13000).
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OUT_OF_MEMORY 2
#define EXPORT __attribute__((visibility("default")))

enum { TO_DEVICE, TO_HOST, ON_DEVICE, LAUNCHES, CAPTURES, REPLAYS, SYNCHRONISED, KINDS };
static long counts[KINDS];
static _Thread_local int device;
static size_t taken[64];

EXPORT long xlt_stub_count(int kind) { return counts[kind]; }

static size_t number(const char *name, size_t otherwise) {
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}
static int gpus(void) { return (int)number("XLT_STUB_GPUS", 1); }
static size_t room(void) { return number("XLT_STUB_MEMORY", 1ul << 33); }

/* Devices */
EXPORT int cudaGetDeviceCount(int *count) { *count = gpus(); return 0; }
EXPORT int cudaSetDevice(int chosen) { if (chosen < 0 || chosen >= gpus()) return 101; device = chosen; return 0; }
EXPORT int cudaGetDevice(int *chosen) { *chosen = device; return 0; }
EXPORT int cudaDriverGetVersion(int *version) { *version = (int)number("XLT_STUB_CUDA", 13000); return 0; }
EXPORT int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
EXPORT int cudaDeviceSynchronize(void) { counts[SYNCHRONISED]++; return 0; }

/* The versions of the struct differ behind the first fields. Any positive number will do there. */
static int properties(char *out, size_t size) {
    int *fields = (int *)out;
    for (size_t i = 0; i < size / sizeof(int); i++) fields[i] = 64;
    memset(out, 0, 256);
    strcpy(out, "stub");
    *(size_t *)(out + 288) = room();
    *(size_t *)(out + 296) = 48 << 10;   /* shared memory of a block */
    *(int *)(out + 304) = 65536;         /* registers of a block */
    *(int *)(out + 308) = 32;            /* warp */
    *(int *)(out + 320) = 1024;          /* threads of a block */
    for (int i = 0; i < 3; i++) *(int *)(out + 324 + 4 * i) = 1024;
    for (int i = 0; i < 3; i++) *(int *)(out + 336 + 4 * i) = 65535;
    *(int *)(out + 360) = 8;             /* compute capability 8.9 */
    *(int *)(out + 364) = 9;
    return 0;
}
EXPORT int cudaGetDeviceProperties(char *out, int which) { return properties(out, 1008); }
EXPORT int cudaGetDeviceProperties_v2(char *out, int which) { return properties(out, 1032); }
EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int which) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 9 : 64;
    return 0;
}

/* Memory: its size and device stand in front of it, so that a limit can be held. */
struct block { size_t size; int device; char padding[256 - sizeof(size_t) - sizeof(int)]; };
static int allocated(void **out, size_t size, int where) {
    if (where >= 0 && taken[where] + size > room()) { *out = NULL; return OUT_OF_MEMORY; }
    struct block *block = aligned_alloc(256, (size + sizeof *block + 511) / 256 * 256);
    if (!block) return OUT_OF_MEMORY;
    memset(block, 0, size + sizeof *block);
    block->size = size;
    block->device = where;
    if (where >= 0) taken[where] += size;
    *out = block + 1;
    return 0;
}
static int freed(void *memory) {
    if (!memory) return 0;
    struct block *block = (struct block *)memory - 1;
    if (block->device >= 0) taken[block->device] -= block->size;
    free(block);
    return 0;
}
EXPORT int cudaMalloc(void **out, size_t size) { return allocated(out, size, device); }
EXPORT int cudaFree(void *memory) { return freed(memory); }
EXPORT int cudaMallocHost(void **out, size_t size) { return allocated(out, size, -1); }
EXPORT int cudaHostAlloc(void **out, size_t size, unsigned flags) { return allocated(out, size, -1); }
EXPORT int cudaFreeHost(void *memory) { return freed(memory); }
EXPORT int cudaMallocFromPoolAsync(void **out, size_t size, void *pool, void *stream) { return cudaMalloc(out, size); }
EXPORT int cudaFreeAsync(void *memory, void *stream) { return freed(memory); }
EXPORT int cudaMemGetInfo(size_t *left, size_t *all) {
    *all = room();
    *left = *all - taken[device];
    return 0;
}
EXPORT int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    counts[kind == 1 ? TO_DEVICE : kind == 2 ? TO_HOST : ON_DEVICE]++;
    memmove(to, from, size);
    return 0;
}
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    return cudaMemcpy(to, from, size, kind);
}
EXPORT int cudaMemset(void *to, int value, size_t size) { memset(to, value, size); return 0; }
EXPORT int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { return cudaMemset(to, value, size); }

/* Streams and events: everything is done when it is asked for. */
EXPORT int cudaStreamCreate(void **stream) { *stream = malloc(1); return 0; }
EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreate(stream); }
EXPORT int cudaStreamDestroy(void *stream) { return 0; }
EXPORT int cudaStreamSynchronize(void *stream) { counts[SYNCHRONISED]++; return 0; }
EXPORT int cudaEventCreate(void **event) { *event = calloc(1, sizeof(double)); return 0; }
EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags) { return cudaEventCreate(event); }
EXPORT int cudaEventDestroy(void *event) { free(event); return 0; }
EXPORT int cudaEventRecord(void *event, void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)event = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return 0;
}
EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
EXPORT int cudaEventElapsedTime(float *out, void *from, void *to) { *out = (float)(*(double *)to - *(double *)from); return 0; }
EXPORT int cudaEventElapsedTime_v2(float *out, void *from, void *to) { return cudaEventElapsedTime(out, from, to); }

/* Kernels, and graphs of them */
EXPORT int cudaLaunchKernel(const void *kernel, ...) { counts[LAUNCHES]++; return 0; }
EXPORT int __cudaLaunchKernel(const void *kernel, ...) { counts[LAUNCHES]++; return 0; }
EXPORT int cudaLaunchKernelExC(const void *how, ...) { counts[LAUNCHES]++; return 0; }
EXPORT int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *given) { call(given); return 0; }
EXPORT int cudaFuncGetAttributes(char *out, const void *kernel) { memset(out, 0, 128); return 0; }
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, ...) { *count = 8; return 0; }
EXPORT int cudaStreamIsCapturing(void *stream, int *is) { *is = 0; return 0; }
EXPORT int cudaStreamBeginCapture(void *stream, int mode) { counts[CAPTURES]++; return 0; }
EXPORT int cudaStreamEndCapture(void *stream, void **graph) { *graph = malloc(1); return 0; }
EXPORT int cudaGraphInstantiate(void **ready, ...) { *ready = malloc(1); return 0; }
EXPORT int cudaGraphLaunch(void *ready, void *stream) { counts[REPLAYS]++; return 0; }
EXPORT void **__cudaRegisterFatBinary(void *code) { return malloc(8); }

/* What the libraries give by address */
static int handle(void **out) { *out = malloc(64); return 0; }
EXPORT int cublasCreate_v2(void **out) { return handle(out); }
EXPORT int cublasLtCreate(void **out) { return handle(out); }
EXPORT int cudnnCreate(void **out) { return handle(out); }
EXPORT int cufftCreate(int *out) { *out = 1; return 0; }
EXPORT int cublasGetMathMode(void *of, int *mode) { *mode = 0; return 0; }
EXPORT const char *cudnnGetErrorString(int error) { return "cudnn"; }
EXPORT const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidDevice"; }
EXPORT const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "invalid device ordinal"; }

/* The driver */
EXPORT int cuInit(unsigned flags) { return 0; }
EXPORT int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }
EXPORT int cuDeviceGetCount(int *count) { return cudaGetDeviceCount(count); }
EXPORT int cuDeviceGet(int *out, int which) { *out = which; return 0; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int which) { return cudaDeviceGetAttribute(value, attribute, which); }
EXPORT int cuDeviceGetName(char *out, int size, int which) { strncpy(out, "stub", size); return 0; }
EXPORT int cuDeviceGetUuid(char *out, int which) { memset(out, 0, 16); out[15] = (char)which; return 0; }
EXPORT int cuDeviceGetUuid_v2(char *out, int which) { return cuDeviceGetUuid(out, which); }

/* TensorRT by name alone: no engine can be built. */
EXPORT int getInferLibVersion(void) { return (int)number("XLT_STUB_TENSORRT", 101401); }

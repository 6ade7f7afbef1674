// row_softmax for : ((M + 3) / 4) blocks of 128 threads,
// 0 bytes of shared memory.

typedef unsigned short tw_f16;

static __device__ __forceinline__ float tw_inf() { return __int_as_float(0x7f800000); }

template <class T>
static __device__ __forceinline__ T tw_max(T a, T b) { return a > b ? a : b; }
static __device__ __forceinline__ float tw_max(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
static __device__ __forceinline__ double tw_max(double a, double b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}

static __device__ __forceinline__ tw_f16 tw_f16_from_f32(float x) {
  tw_f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

static __device__ __forceinline__ float tw_f32_from_f16(tw_f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}

extern "C" __global__ void __launch_bounds__(128) row_softmax(
    const tw_f16* __restrict__ x,
    tw_f16* __restrict__ z,
    int* __restrict__ lanes,
    const int M,
    const int N,
    const float scale
) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  alignas(16) tw_f16 bits[2][8];
  alignas(16) float row[2][8];
  alignas(16) float top[1];
  alignas(16) float total[1];
  alignas(16) int rank[1];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    *(int4*)&bits[v][0] =
        block * 4 + warp < M && lane * 8 + v * 256 < N
            ? *(const int4*)&x[(long long)(block * 4 + warp) * N + (lane * 8 + v * 256)]
            : int4{-67044352, -67044352, -67044352, -67044352};
  }
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      row[v][j] = tw_f32_from_f16(bits[v][j]);
    }
  }
  top[0] = (-tw_inf());
  // the row's maximum
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      top[0] = tw_max(top[0], (row[v][j] * scale));
    }
  }
  top[0] = tw_max(top[0], __shfl_xor_sync(0xffffffffu, top[0], 1));
  top[0] = tw_max(top[0], __shfl_xor_sync(0xffffffffu, top[0], 2));
  top[0] = tw_max(top[0], __shfl_xor_sync(0xffffffffu, top[0], 4));
  top[0] = tw_max(top[0], __shfl_xor_sync(0xffffffffu, top[0], 8));
  top[0] = tw_max(top[0], __shfl_xor_sync(0xffffffffu, top[0], 16));
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      row[v][j] = expf(((row[v][j] * scale) - top[0]));
    }
  }
  total[0] = 0.0f;
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      total[0] = (total[0] + row[v][j]);
    }
  }
  total[0] = (total[0] + __shfl_xor_sync(0xffffffffu, total[0], 1));
  total[0] = (total[0] + __shfl_xor_sync(0xffffffffu, total[0], 2));
  total[0] = (total[0] + __shfl_xor_sync(0xffffffffu, total[0], 4));
  total[0] = (total[0] + __shfl_xor_sync(0xffffffffu, total[0], 8));
  total[0] = (total[0] + __shfl_xor_sync(0xffffffffu, total[0], 16));
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      bits[v][j] = tw_f16_from_f32(row[v][j] / total[0]);
    }
  }
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    if (block * 4 + warp < M && lane * 8 + v * 256 < N) {
      *(int4*)&z[(long long)(block * 4 + warp) * N + (lane * 8 + v * 256)] =
          *(const int4*)&bits[v][0];
    }
  }
  rank[0] = thread;
  rank[0] = (rank[0] - __shfl_sync(0xffffffffu, rank[0], 0));
  rank[0] = ((lane <= 15) ? rank[0] : (-1));
  if (block * 4 + warp < M) lanes[block * 128 + lane + warp * 32] = rank[0];
}

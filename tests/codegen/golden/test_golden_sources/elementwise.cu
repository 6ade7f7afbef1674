// elementwise for : ((N + 31) / 32) blocks of 32 threads,
// 0 bytes of shared memory.

typedef unsigned short tw_f16;

template <class T>
static __device__ __forceinline__ T tw_floordiv(T a, T b) {
  T quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
static __device__ __forceinline__ float tw_floordiv(float a, float b) {
  return floorf(__fdiv_rn(a, b));
}
static __device__ __forceinline__ double tw_floordiv(double a, double b) {
  return floor(a / b);
}

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

extern "C" __global__ void __launch_bounds__(32) elementwise(
    const tw_f16* __restrict__ x,
    const tw_f16* __restrict__ y,
    tw_f16* __restrict__ z,
    const int N
) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  alignas(16) tw_f16 x_reg[1];
  alignas(16) tw_f16 y_reg[1];
  alignas(16) tw_f16 z_reg[1];
  x_reg[0] = block * 32 + lane < N ? x[block * 32 + lane] : (tw_f16)0x0000;
  y_reg[0] = block * 32 + lane < N ? y[block * 32 + lane] : (tw_f16)0x3c00;
  // add
  z_reg[0] = tw_f16_from_f32(tw_f32_from_f16(x_reg[0]) + tw_f32_from_f16(y_reg[0]));
  if (block * 32 + lane < N) z[block * 32 + lane] = z_reg[0];
  // max
  z_reg[0] = tw_f16_from_f32(tw_max(tw_f32_from_f16(x_reg[0]), tw_f32_from_f16(y_reg[0])));
  if (block * 32 + lane < N) z[(long long)1 * N + (block * 32 + lane)] = z_reg[0];
  // floordiv
  z_reg[0] =
      tw_f16_from_f32(tw_floordiv(tw_f32_from_f16(x_reg[0]), tw_f32_from_f16(y_reg[0])));
  if (block * 32 + lane < N) z[(long long)2 * N + (block * 32 + lane)] = z_reg[0];
  // select
  z_reg[0] =
      tw_f16_from_f32((tw_f32_from_f16(x_reg[0]) > 0.0f) ? tw_f32_from_f16(x_reg[0]) : tw_f32_from_f16(y_reg[0]));
  if (block * 32 + lane < N) z[(long long)3 * N + (block * 32 + lane)] = z_reg[0];
  // lt
  z_reg[0] =
      tw_f16_from_f32((float)(tw_f32_from_f16(x_reg[0]) < tw_f32_from_f16(y_reg[0])));
  if (block * 32 + lane < N) z[(long long)4 * N + (block * 32 + lane)] = z_reg[0];
  // rsqrt
  z_reg[0] = tw_f16_from_f32(rsqrtf(tw_f32_from_f16(x_reg[0])));
  if (block * 32 + lane < N) z[(long long)5 * N + (block * 32 + lane)] = z_reg[0];
}

// mfma_matmul for gfx942: ((M + 31) / 32) * ((N + 31) / 32) blocks of 64 threads,
// 4096 bytes of shared memory.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))

typedef unsigned short tw_f16;

typedef int tw_int2 __attribute__((ext_vector_type(2)));

template <int bits, int base, int shift>
static __device__ __forceinline__ int tw_swizzle(int a) {
  return a ^ (((a >> (base + shift)) & ((1 << bits) - 1)) << base);
}

static __device__ __forceinline__ void tw_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

static __device__ __forceinline__ void tw_F32_16x16x16_F16(float* d, const tw_f16* a, const tw_f16* b) {
  typedef float D __attribute__((ext_vector_type(4), aligned(4)));
  typedef _Float16 A __attribute__((ext_vector_type(4), aligned(4)));
  typedef _Float16 B __attribute__((ext_vector_type(4), aligned(4)));
  *(D*)d = __builtin_amdgcn_mfma_f32_16x16x16f16(*(const A*)a, *(const B*)b, *(D*)d, 0, 0, 0);
}

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(64, 64))) void mfma_matmul(
    const tw_f16* __restrict__ a,
    const tw_f16* __restrict__ b,
    float* __restrict__ c,
    const int M,
    const int N,
    const int K
) {
  __shared__ __attribute__((aligned(128))) unsigned char tw_shared[4096];
  tw_f16* const a_tile = reinterpret_cast<tw_f16*>(tw_shared);  // 32 x 32
  tw_f16* const b_tile = reinterpret_cast<tw_f16*>(tw_shared + 2048);  // 32 x 32
  const int block = __builtin_amdgcn_workgroup_id_x();
  const int thread = __builtin_amdgcn_workitem_id_x();
  const int lane = thread % 64;
  alignas(16) float acc[2][2][4];
  alignas(16) tw_f16 a_frag[2][2][4];
  alignas(16) tw_f16 b_frag[2][2][4];
  alignas(16) tw_f16 a_stage[16];
  alignas(16) tw_f16 b_stage[16];
  const int tw_rest_bn = block;
  const int bn = tw_rest_bn % ((N + 31) / 32);
  const int bm = tw_rest_bn / ((N + 31) / 32);
  const int h = lane / 16;
  const int l = lane % 16;
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
      #pragma unroll
      for (int r = 0; r < 4; ++r) {
        acc[i][j][r] = 0.0f;
      }
    }
  }
  for (int ko = 0; ko < ((K + 31) / 32); ++ko) {
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
      a_stage[i] =
          bm * 32 + i * 2 + (lane / 32) < M && ko * 32 + (lane % 32) < K
              ? a[(long long)(bm * 32 + i * 2 + (lane / 32)) * K + (ko * 32 + (lane % 32))]
              : (tw_f16)0x0000;
    }
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
      a_tile[((lane % 32) + (lane / 32) * 32) ^ tw_swizzle<2, 3, 3>(i * 64)] = a_stage[i];
    }
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
      b_stage[i] =
          bn * 32 + i * 2 + (lane / 32) < N && ko * 32 + (lane % 32) < K
              ? b[(long long)(bn * 32 + i * 2 + (lane / 32)) * K + (ko * 32 + (lane % 32))]
              : (tw_f16)0x0000;
    }
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
      b_tile[((lane % 32) + (lane / 32) * 32) ^ tw_swizzle<2, 3, 3>(i * 64)] = b_stage[i];
    }
    tw_barrier();
    #pragma unroll
    for (int t = 0; t < 2; ++t) {
      #pragma unroll
      for (int kk = 0; kk < 2; ++kk) {
        *(tw_int2*)&a_frag[t][kk][0] =
            *(const tw_int2*)&a_tile[(tw_swizzle<2, 3, 3>(h * 4 + l * 32) ^ (kk * 16)) + t * 512];
      }
    }
    #pragma unroll
    for (int t = 0; t < 2; ++t) {
      #pragma unroll
      for (int kk = 0; kk < 2; ++kk) {
        *(tw_int2*)&b_frag[t][kk][0] =
            *(const tw_int2*)&b_tile[(tw_swizzle<2, 3, 3>(h * 4 + l * 32) ^ (kk * 16)) + t * 512];
      }
    }
    tw_barrier();
    #pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
          tw_F32_16x16x16_F16(&acc[i][j][0], &a_frag[i][kk][0], &b_frag[j][kk][0]);
        }
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
      #pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (bm * 32 + h * 4 + i * 16 + r < M && bn * 32 + j * 16 + l < N) {
          c[(long long)(bm * 32 + h * 4 + i * 16 + r) * N + (bn * 32 + j * 16 + l)] = acc[i][j][r];
        }
      }
    }
  }
}

// matmul for sm_90a: ((M + 127) / 128) * ((N + 127) / 128) blocks of 128 threads,
// 49152 bytes of shared memory.

typedef unsigned short tw_bf16;

template <int bits, int base, int shift>
static __device__ __forceinline__ int tw_swizzle(int a) {
  return a ^ (((a >> (base + shift)) & ((1 << bits) - 1)) << base);
}

static __device__ __forceinline__ unsigned tw_shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void tw_copy_async_16_if(bool ok, void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(tw_shared_address(dst)), "l"(src), "r"(ok ? 16 : 0) : "memory");
}

static __device__ __forceinline__ tw_bf16 tw_bf16_from_f32(float x) {
  tw_bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

static __device__ __forceinline__ void tw_matrix_load_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(tw_shared_address(row)) : "memory");
}

static __device__ __forceinline__ void tw_matrix_load_x4_trans(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(tw_shared_address(row)) : "memory");
}

static __device__ __forceinline__ void tw_mma_sync_m16n8k16_f32_bf16(float* d, const tw_bf16* a, const tw_bf16* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(((const unsigned*)a)[0]), "r"(((const unsigned*)a)[1]), "r"(((const unsigned*)a)[2]), "r"(((const unsigned*)a)[3]), "r"(((const unsigned*)b)[0]), "r"(((const unsigned*)b)[1]));
}

extern "C" __global__ void __launch_bounds__(128) matmul(
    const tw_bf16* __restrict__ a,
    const tw_bf16* __restrict__ b,
    tw_bf16* __restrict__ c,
    const int M,
    const int N,
    const int K
) {
  extern __shared__ __align__(1024) unsigned char tw_shared[];
  tw_bf16* const a_tile = reinterpret_cast<tw_bf16*>(tw_shared);  // 3 x 128 x 32
  tw_bf16* const b_tile = reinterpret_cast<tw_bf16*>(tw_shared + 24576);  // 3 x 32 x 128
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  alignas(16) float acc[4][8][4];  // the accumulator
  alignas(16) tw_bf16 a_frag[4][8];
  alignas(16) tw_bf16 b_frag[8][4];
  alignas(16) tw_bf16 out[4][8][4];
  const int tw_rest_bn = block;
  const int bn = tw_rest_bn % ((N + 127) / 128);
  const int bm = tw_rest_bn / ((N + 127) / 128);
  const int wm = warp / 2;
  const int wn = warp % 2;
  const int g = lane / 4;
  const int p = lane % 4;
  const int tr = thread / 4;
  const int tc = thread % 4;
  const int ur = thread / 16;
  const int uc = thread % 16;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int r = 0; r < 4; ++r) {
        acc[i][j][r] = 0.0f;
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    tw_copy_async_16_if(
        bm * 128 + i * 32 + tr < M,
        &a_tile[tw_swizzle<2, 3, 3>(tc * 8 + tr * 32) + i * 1024],
        &a[(bm * 128 + i * 32 + tr) * K + (tc * 8)]);
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    tw_copy_async_16_if(
        bn * 128 + uc * 8 < N,
        &b_tile[tw_swizzle<3, 3, 4>(uc * 8 + ur * 128) + i * 1024],
        &b[(i * 8 + ur) * N + (bn * 128 + uc * 8)]);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    tw_copy_async_16_if(
        2 <= (K / 32) && bm * 128 + i * 32 + tr < M,
        &a_tile[tw_swizzle<2, 3, 3>(tc * 8 + tr * 32) + i * 1024 + 4096],
        &a[(bm * 128 + i * 32 + tr) * K + (tc * 8 + 32)]);
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    tw_copy_async_16_if(
        2 <= (K / 32) && bn * 128 + uc * 8 < N,
        &b_tile[tw_swizzle<3, 3, 4>(uc * 8 + ur * 128) + i * 1024 + 4096],
        &b[(i * 8 + ur + 32) * N + (bn * 128 + uc * 8)]);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int ko = 0; ko < (K / 32); ++ko) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    // slot ko is filled, slot ko - 1 is read
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      tw_copy_async_16_if(
          ko + 3 <= (K / 32) && bm * 128 + i * 32 + tr < M,
          &(a_tile + ((ko + 2) % 3) * 4096)[tw_swizzle<2, 3, 3>(tc * 8 + tr * 32) + i * 1024],
          &a[(bm * 128 + i * 32 + tr) * K + (ko * 32 + tc * 8 + 64)]);
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      tw_copy_async_16_if(
          ko + 3 <= (K / 32) && bn * 128 + uc * 8 < N,
          &(b_tile + ((ko + 2) % 3) * 4096)[tw_swizzle<3, 3, 4>(uc * 8 + ur * 128) + i * 1024],
          &b[(i * 8 + ko * 32 + ur + 64) * N + (bn * 128 + uc * 8)]);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    #pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
      // a: 16x16 at a time
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        tw_matrix_load_x4(
            *(unsigned*)&a_frag[i][0],
            *(unsigned*)&a_frag[i][2],
            *(unsigned*)&a_frag[i][4],
            *(unsigned*)&a_frag[i][6],
            &(a_tile + (ko % 3) * 4096)[(tw_swizzle<2, 3, 3>((lane % 8) * 32 + (lane / 16) * 8) ^ (kk * 16)) + i * 512 + wm * 2048 + ((lane / 8) % 2) * 256]);
      }
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        tw_matrix_load_x4_trans(
            *(unsigned*)&b_frag[j * 2][0],
            *(unsigned*)&b_frag[j * 2][2],
            *(unsigned*)&b_frag[j * 2 + 1][0],
            *(unsigned*)&b_frag[j * 2 + 1][2],
            &(b_tile + (ko % 3) * 4096)[(tw_swizzle<3, 3, 4>(wn * 64 + (lane % 8) * 128 + (lane / 16) * 8) ^ (j * 16)) + kk * 2048 + ((lane / 8) % 2) * 1024]);
      }
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
          tw_mma_sync_m16n8k16_f32_bf16(&acc[i][j][0], &a_frag[i][0], &b_frag[j][0]);
        }
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int r = 0; r < 4; ++r) {
        out[i][j][r] = tw_bf16_from_f32(acc[i][j][r]);
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (bm * 128 + g + h * 8 + i * 16 + wm * 64 < M && bn * 128 + j * 8 + p * 2 + wn * 64 < N) {
          *(int*)&c[(bm * 128 + g + h * 8 + i * 16 + wm * 64) * N + (bn * 128 + j * 8 + p * 2 + wn * 64)] =
              *(const int*)&out[i][j][h * 2];
        }
      }
    }
  }
}

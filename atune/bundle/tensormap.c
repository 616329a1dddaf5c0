/* Descriptors of the tensor memory accelerator, for CUDA libraries of a bundle. Their host code calls a function that
 * tilelang's compiler library has, but tilelang's runtime lacks. Its arguments (src/cuda/runtime.cc of tilelang): the
 * descriptor, its dtype and rank, the address; sizes, strides in bytes, box and element strides; and four modes.
 *
 * This file links no library: the loader puts the driver's function into `atune_encode`, and has loaded tvm_ffi before.
 */

#include <stdint.h>

typedef struct { /* TVMFFIAny of tvm/ffi/c_api.h */
  int32_t type_index;
  uint32_t zero_padding;
  union {
    int64_t v_int64;
    void *v_ptr;
  };
} Any;

typedef int (*Encode)(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *strides,
                      const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int l2, int fill);

extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

enum { TVM_FFI_INT = 1, MOST_RANK = 5 };

Encode atune_encode; /* cuTensorMapEncodeTiled */

static int failed(const char *message) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}

int __tvm_ffi___tvm_tensormap_create_tiled(void *self, const Any *args, int32_t count, Any *result) {
  uint64_t sizes[MOST_RANK], strides[MOST_RANK];
  uint32_t box[MOST_RANK], element_strides[MOST_RANK];
  int64_t rank = count > 2 ? args[2].v_int64 : 0;
  (void)self;
  if (rank < 1 || rank > MOST_RANK || count != 8 + 4 * rank) return failed("wrong arguments for a tensor's descriptor");
  if (!atune_encode) return failed("the CUDA driver has no cuTensorMapEncodeTiled: it is missing, or too old");
  const Any *given = args + 4, *modes = given + 4 * rank;
  for (int64_t i = 0; i < rank; i++) {
    sizes[i] = (uint64_t)given[i].v_int64;
    strides[i] = (uint64_t)given[rank + i].v_int64;
    box[i] = (uint32_t)given[2 * rank + i].v_int64;
    element_strides[i] = (uint32_t)given[3 * rank + i].v_int64;
  }
  /* The driver takes no stride of the innermost dimension. */
  int status = atune_encode(args[0].v_ptr, (int)args[1].v_int64, (uint32_t)rank, args[3].v_ptr, sizes, strides + 1, box,
                            element_strides, (int)modes[0].v_int64, (int)modes[1].v_int64, (int)modes[2].v_int64,
                            (int)modes[3].v_int64);
  if (status != 0) return failed("the CUDA driver refuses a tensor's descriptor: pass an address that is aligned to 16 bytes");
  result->type_index = TVM_FFI_INT;
  result->zero_padding = 0;
  result->v_int64 = status;
  return 0;
}

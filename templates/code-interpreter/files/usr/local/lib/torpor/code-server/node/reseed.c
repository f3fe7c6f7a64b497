/* Makes OpenSSL, as linked into Node, take new entropy from the kernel: Node has no call for it, and a copy of the machine
   would draw the same keys as its siblings. RAND_poll (OpenSSL 3) reseeds the primary generator, which all others follow. */
#include <stddef.h>

/* From node_api.h, which is not part of Debian's nodejs package. */
typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int RAND_poll(void);

static napi_value reseed(napi_env env, napi_callback_info info) {
  (void)env;
  (void)info;
  RAND_poll();
  return NULL;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  return napi_create_function(env, "reseed", (size_t)-1, reseed, NULL, &function) == 0 ? function : exports;
}

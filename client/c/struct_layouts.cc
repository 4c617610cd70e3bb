// Where the fields of the C interface's structs lie, as programs were compiled with them (LP64).
// abidiff compares functions and sees only some changes of a type. A struct grows at its end, by a
// line here and never by another number in one.
#include <cstddef>

#include "kvtier/kvtier.h"

#if defined(__LP64__)
#define KVT_FIELD(type, field, at) static_assert(offsetof(type, field) == (at))

KVT_FIELD(kvt_layer_shape, size, 0);
KVT_FIELD(kvt_layer_shape, kv_heads, 8);
KVT_FIELD(kvt_layer_shape, head_dim_k, 12);
KVT_FIELD(kvt_layer_shape, head_dim_v, 16);
KVT_FIELD(kvt_layer_shape, format, 20);
KVT_FIELD(kvt_layer_shape, raw_bytes, 24);

KVT_FIELD(kvt_namespace, size, 0);
KVT_FIELD(kvt_namespace, model, 8);
KVT_FIELD(kvt_namespace, adapter, 16);
KVT_FIELD(kvt_namespace, tenant, 24);
KVT_FIELD(kvt_namespace, positions, 32);
KVT_FIELD(kvt_namespace, page_layout, 40);
KVT_FIELD(kvt_namespace, layers, 48);
KVT_FIELD(kvt_namespace, kv_heads, 52);
KVT_FIELD(kvt_namespace, head_dim_k, 56);
KVT_FIELD(kvt_namespace, head_dim_v, 60);
KVT_FIELD(kvt_namespace, block_tokens, 64);
KVT_FIELD(kvt_namespace, format, 68);
KVT_FIELD(kvt_namespace, rank, 72);
KVT_FIELD(kvt_namespace, ranks, 76);
KVT_FIELD(kvt_namespace, raw_bytes, 80);
KVT_FIELD(kvt_namespace, extra_bytes_max, 84);
KVT_FIELD(kvt_namespace, digest_bytes, 88);
KVT_FIELD(kvt_namespace, layer_shapes, 96);
KVT_FIELD(kvt_namespace, layer_shapes_count, 104);

KVT_FIELD(kvt_record_layout, size, 0);
KVT_FIELD(kvt_record_layout, layers, 8);
KVT_FIELD(kvt_record_layout, block_tokens, 12);
KVT_FIELD(kvt_record_layout, header_bytes, 16);
KVT_FIELD(kvt_record_layout, payload_bytes, 24);
KVT_FIELD(kvt_record_layout, record_bytes, 32);

KVT_FIELD(kvt_client_options, size, 0);
KVT_FIELD(kvt_client_options, socket, 8);
KVT_FIELD(kvt_client_options, name, 16);
KVT_FIELD(kvt_client_options, cuda_device, 24);
KVT_FIELD(kvt_client_options, read_only, 28);
KVT_FIELD(kvt_client_options, verify_loads, 29);
KVT_FIELD(kvt_client_options, slots_ahead, 32);
KVT_FIELD(kvt_client_options, write_backs_queued_max, 36);
KVT_FIELD(kvt_client_options, reconnect_delay_max_ns, 40);
KVT_FIELD(kvt_client_options, slot_wait_ns, 48);
KVT_FIELD(kvt_client_options, log, 56);
KVT_FIELD(kvt_client_options, log_user, 64);
KVT_FIELD(kvt_client_options, log_level, 72);

KVT_FIELD(kvt_stats, size, 0);
KVT_FIELD(kvt_stats, blocks_looked_up, 8);
KVT_FIELD(kvt_stats, hits, 16);
KVT_FIELD(kvt_stats, misses, 40);
KVT_FIELD(kvt_stats, faults, 48);
KVT_FIELD(kvt_stats, leases_lost, 56);
KVT_FIELD(kvt_stats, blocks_written, 64);
KVT_FIELD(kvt_stats, blocks_dropped, 72);
KVT_FIELD(kvt_stats, dropped, 80);
KVT_FIELD(kvt_stats, deadlines_missed, 112);
KVT_FIELD(kvt_stats, connects, 120);
KVT_FIELD(kvt_stats, remote_hits, 128);

KVT_FIELD(kvt_pool_side, size, 0);
KVT_FIELD(kvt_pool_side, base, 8);
KVT_FIELD(kvt_pool_side, bytes, 16);
KVT_FIELD(kvt_pool_side, page_stride, 24);
KVT_FIELD(kvt_pool_side, token_stride, 32);
KVT_FIELD(kvt_pool_side, head_stride, 40);
KVT_FIELD(kvt_pool_side, rows, 48);
KVT_FIELD(kvt_pool_side, row_bytes, 56);
KVT_FIELD(kvt_pool_side, row_stride, 64);

KVT_FIELD(kvt_pool_shape, size, 0);
KVT_FIELD(kvt_pool_shape, type, 8);
KVT_FIELD(kvt_pool_shape, pages, 12);
KVT_FIELD(kvt_pool_shape, page_tokens, 16);
KVT_FIELD(kvt_pool_shape, layers, 20);
KVT_FIELD(kvt_pool_shape, k, 24);
KVT_FIELD(kvt_pool_shape, v, 32);

KVT_FIELD(kvt_pages, size, 0);
KVT_FIELD(kvt_pages, records, 8);
KVT_FIELD(kvt_pages, records_count, 16);
KVT_FIELD(kvt_pages, in_place, 24);
KVT_FIELD(kvt_pages, pool, 32);
KVT_FIELD(kvt_pages, numbers, 40);
KVT_FIELD(kvt_pages, numbers_count, 48);
KVT_FIELD(kvt_pages, k_pages, 56);
KVT_FIELD(kvt_pages, k_pages_count, 64);
KVT_FIELD(kvt_pages, v_pages, 72);
KVT_FIELD(kvt_pages, v_pages_count, 80);
KVT_FIELD(kvt_pages, type, 88);

KVT_FIELD(kvt_match, size, 0);
KVT_FIELD(kvt_match, blocks, 8);
KVT_FIELD(kvt_match, per_tier, 12);
KVT_FIELD(kvt_match, remote, 24);

KVT_FIELD(kvt_write_back_result, size, 0);
KVT_FIELD(kvt_write_back_result, accepted, 8);
KVT_FIELD(kvt_write_back_result, cached, 12);
KVT_FIELD(kvt_write_back_result, dropped, 16);

KVT_FIELD(kvt_hint, size, 0);
KVT_FIELD(kvt_hint, kind, 8);
KVT_FIELD(kvt_hint, tier, 12);
KVT_FIELD(kvt_hint, priority, 16);
KVT_FIELD(kvt_hint, keep_s, 24);

#undef KVT_FIELD
#endif

// Kernels of a step that may begin before the one in front has ended: none reads what that writes
// before it has.
#include <functional>

#include "tests/gpu/attention/late_writer.h"
#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::size_t kDim = 128;

class GpuDependent : public GpuTest {
 protected:
  // `launch` reads `input` and writes `output`, which are what it does with `values`.
  void expect_waits(const std::vector<Bf16>& values, DeviceArray<std::byte>& output,
                    const std::function<void(const Bf16* input)>& launch) {
    const DeviceArray<Bf16> right(values);
    launch(right.get());
    check(cudaStreamSynchronize(stream().get()), "a kernel by itself");
    const std::vector<std::byte> expected = output.download();
    DeviceArray<Bf16> input(values.size());
    input.fill_bytes(0);
    output.fill_bytes(0xFF);
    check(cudaDeviceSynchronize(), "cudaMemset");
    write_late(reinterpret_cast<std::byte*>(input.get()),
               reinterpret_cast<const std::byte*>(right.get()), values.size() * sizeof(Bf16),
               stream());
    launch(input.get());
    check(cudaStreamSynchronize(stream().get()), "a kernel behind a late one");
    EXPECT_TRUE(same_bytes(output.download(), expected));
  }

  static std::vector<Bf16> numbers(std::size_t count) {
    return to_bf16(random_bf16_floats(count, 71));
  }
};

TEST_F(GpuDependent, NormWaitsForWhatItAdds) {
  const DeviceArray<float> residual(random_floats(kDim, 72));
  const DeviceArray<float> weight(random_floats(kDim, 73));
  const DeviceArray<std::uint32_t> index(std::vector<std::uint32_t>{0});
  DeviceArray<std::byte> out(kDim * sizeof(Bf16));
  expect_waits(numbers(kDim), out, [&](const Bf16* delta) {
    gather_rms_norm(residual.get(), delta, index.get(), weight.get(),
                    reinterpret_cast<Bf16*>(out.get()), 1, kDim, 1e-5F, stream());
  });
}

TEST_F(GpuDependent, ActivationWaitsForItsInput) {
  DeviceArray<std::byte> out(kDim * sizeof(Bf16));
  expect_waits(numbers(2 * kDim), out, [&](const Bf16* gate_up) {
    swiglu(gate_up, reinterpret_cast<Bf16*>(out.get()), 1, kDim, stream());
  });
}

TEST_F(GpuDependent, RotationWaitsForTheProjection) {
  const DeviceArray<std::uint32_t> positions(std::vector<std::uint32_t>{5});
  const DeviceArray<std::uint32_t> zero(std::vector<std::uint32_t>{0});
  const DeviceArray<Bf16> values(2 * kTileTokens * kDim);
  const DeviceArray<ExactPage> pages(std::vector<ExactPage>{{values.get(), 0}});
  const DeviceArray<float> frequencies(random_floats(kDim / 2, 74));
  DeviceArray<std::byte> q(kDim * sizeof(Bf16));
  expect_waits(numbers(3 * kDim), q, [&](const Bf16* qkv) {
    StoreKvArgs args;
    args.step.rows = 1;
    args.step.positions = positions.get();
    args.step.row_sequence = zero.get();
    args.step.row_page = zero.get();
    args.step.pages = pages.get();
    args.heads = args.kv_heads = 1;
    args.head_dim = kDim;
    args.qkv = qkv;
    args.q = reinterpret_cast<Bf16*>(q.get());
    args.inverse_frequencies = frequencies.get();
    store_kv(args, stream());
  });
}

TEST_F(GpuDependent, QuantisationWaitsForThePages) {
  Namespace ns;
  ns.model = "dependent";
  ns.layers = ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = kDim;
  ns.block_tokens = kTileTokens;
  ns.format = StorageFormat::fp8_e4m3;
  const RecordLayout layout = RecordLayout::of(ns);
  const DeviceArray<std::uint32_t> page_number(std::vector<std::uint32_t>{0});
  DeviceArray<std::byte> record(layout.record_bytes);
  record.fill_bytes(0xFF);
  const DeviceArray<std::byte*> records(std::vector<std::byte*>{record.get()});
  const DeviceArray<ExactPage> pages(1);
  expect_waits(numbers(2 * kTileTokens * kDim), record, [&](const Bf16* values) {
    const ExactPage page{const_cast<Bf16*>(values), 0};
    check(cudaMemcpyAsync(pages.get(), &page, sizeof page, cudaMemcpyHostToDevice,
                          StreamView().get()),
          "cudaMemcpy");
    check(cudaStreamSynchronize(nullptr), "cudaMemcpy");
    quantise_pages(layout, 0, pages.get(), page_number.get(), records.get(), 1, stream());
  });
}

}  // namespace
}  // namespace kvtier::kernels::cuda

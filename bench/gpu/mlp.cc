// gpu_mlp: a training step of the demo's model, a perceptron of 784-256-128-10, by a trainer that
// hosts the parameters itself on a device and computes there: the images are copied to the device,
// then pull, forward, cross entropy, backward, a step of Adam. Floor: the same step with parameters
// and computation on the CPU, so the efficiency says how many times as fast the device is.

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/gpu/cases.h"
#include "bench/gpu/device_case.h"
#include "bench/gpu/device_job.h"
#include "bench/gpu/on_device.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"

namespace psd::bench {
namespace {

constexpr int64_t kWidths[] = {784, 256, 128, 10};
constexpr size_t kLayers = 3;
constexpr int64_t kBatch = 128;  // images in a step, as in the demo
constexpr int64_t kTinyBatch = 4;
constexpr int kCheckedSteps = 3;
constexpr char kWorker[] = "bench";

// Images and their classes, on the host.
struct Batch {
  Tensor images, labels;
};

absl::StatusOr<Batch> NewBatch(int64_t size) {
  Batch batch;
  PSD_ASSIGN_OR_RETURN(batch.images, Pattern(nullptr, {size, kWidths[0]}));
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < size; ++i) labels.push_back(i % kWidths[kLayers]);
  batch.labels = Tensor::Of({size}, std::move(labels));
  return batch;
}

// The model, hosted on a device or, if that is null, on the CPU. Both start with the same bits.
class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(Worker& worker, Device* device) {
    auto model = std::make_unique<Model>();
    model->worker_ = &worker;
    model->device_ = device;
    const std::string place(DeviceName(device));
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const int64_t in = kWidths[layer], out = kWidths[layer + 1];
      for (const Shape& shape : {Shape{out, in}, Shape{out}}) {
        const double bound = 1 / std::sqrt(static_cast<double>(in));
        const size_t number = model->parameters_.size();
        PSD_ASSIGN_OR_RETURN(RRef parameter,
                             CreateOn(worker, kWorker, absl::StrCat(place, "/", number),
                                      Uniform(shape, -bound, bound, number), place));
        model->parameters_.push_back(std::move(parameter));
      }
    }
    PSD_ASSIGN_OR_RETURN(model->optimizer_,
                         DistributedOptimizer::Create(worker, Adam{}, model->parameters_));
    return model;
  }

  // Returns the loss before the step, which is on the model's device.
  absl::StatusOr<Tensor> Step(const Batch& batch) {
    PSD_ASSIGN_OR_RETURN(Context context, worker_->NewContext());
    PSD_ASSIGN_OR_RETURN(
        const std::vector<Variable> parameters,
        FetchTo(*worker_, parameters_, std::string(DeviceName(device_)), &context));
    PSD_ASSIGN_OR_RETURN(Tensor images, CopyTo(device_, batch.images));
    Variable x = std::move(images);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      if (layer > 0) x = Relu(x);
      x = Linear(x, parameters[2 * layer], parameters[2 * layer + 1]);
    }
    const Variable loss = CrossEntropy(x, batch.labels);
    PSD_RETURN_IF_ERROR(context.Backward({loss}));
    PSD_RETURN_IF_ERROR(optimizer_->Step(context));
    return loss.tensor();
  }

 private:
  Worker* worker_ = nullptr;
  Device* device_ = nullptr;
  std::vector<RRef> parameters_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

class Mlp : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    device_ = environment.devices[0];
    PSD_ASSIGN_OR_RETURN(batch_, NewBatch(SizeOn(*device_, kBatch, kTinyBatch)));
    PSD_ASSIGN_OR_RETURN(worker_, StartOnDevices(environment, kWorker));
    PSD_ASSIGN_OR_RETURN(there_, Model::Create(*worker_, device_.get()));
    PSD_ASSIGN_OR_RETURN(here_, Model::Create(*worker_, nullptr));
    for (int i = 0; i < kCheckedSteps; ++i) PSD_RETURN_IF_ERROR(CheckStep());
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(Steps(), [this] { return there_->Step(batch_).status(); });
  }
  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(Steps(), [this] { return here_->Step(batch_).status(); }));
    return Median(seconds);
  }

 private:
  int Steps() const { return SizeOn(*device_, 100, 2); }

  // Sums are in another order on the device, so the losses are near and not equal.
  absl::Status CheckStep() {
    PSD_ASSIGN_OR_RETURN(const Tensor there, there_->Step(batch_));
    PSD_ASSIGN_OR_RETURN(const Tensor here, here_->Step(batch_));
    PSD_ASSIGN_OR_RETURN(const std::vector<float> loss, ReadFloats(there, 0, 1));
    const float want = here.data<float>()[0];
    if (std::abs(loss[0] - want) <= 0.01f * want) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the loss is ", loss[0], " on ", device_->name(),
                                            " and ", want, " on the CPU"));
  }

  std::shared_ptr<Device> device_;
  Batch batch_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Model> there_, here_;  // both end before their worker
};

}  // namespace

std::vector<Case> GpuMlpCases() {
  Case one = DeviceCase("gpu_mlp", [] { return std::make_unique<Mlp>(); });
  one.unit = {"images/s", static_cast<double>(kBatch), /*rate=*/true};
  return {one};
}

}  // namespace psd::bench

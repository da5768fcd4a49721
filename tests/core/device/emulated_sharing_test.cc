// Tests of memory that emulated devices share.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/device_sharing.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "tests/core/device/emulated_kernels.h"
#include "tests/core/device/two_devices.h"

namespace psd::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = TwoDevices::kCount;
constexpr size_t kBytes = TwoDevices::kBytes;
constexpr uint64_t kSeeds = 8;

// ---- reading

TEST(EmulatedSharingTest, EqualDevicesHaveEqualIdentities) {
  const auto devices = EmulatedDevice::Create(2);
  ASSERT_TRUE(devices.ok());
  const std::string& identity = (*devices)[0]->sharing()->identity();
  EXPECT_THAT(identity, HasSubstr("emulated:"));
  EXPECT_EQ(NewExporter()->sharing()->identity(), identity);
  EXPECT_NE((*devices)[1]->sharing()->identity(), identity);
  EXPECT_FALSE((*devices)[0]->sharing()->exports());
  EXPECT_TRUE(NewExporter()->sharing()->exports());
}

TEST(EmulatedSharingTest, CopiesAndKernelsReadWhatAnotherDeviceHasWritten) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const TwoDevices on(seed);
    EmulatedStream& stream = on.importer->default_stream();
    const auto imported = on.Import();
    EXPECT_EQ(imported->place().device(), on.importer.get());
    EXPECT_EQ(on.importer->BytesToEnd(imported->data() + 40), kBytes - 40);
    EXPECT_EQ(Read(stream, *imported), Equal(kCount, 1)) << "seed " << seed;
    const auto sum = NewFloats(stream, kCount);
    ASSERT_TRUE(stream.CopyFrom(sum->data(), *on.importer, imported->data(), kBytes).ok());
    ASSERT_TRUE(stream
                    .Launch("AddTo", kCount, AddTo(), DeviceArray<float>(*sum),
                            DeviceArray<const float>(*imported))
                    .ok());
    EXPECT_EQ(Read(stream, *sum), Equal(kCount, 2)) << "seed " << seed;
  }
}

// The elements lie in the memory of both devices.
TEST(EmulatedSharingTest, NothingIsCopiedAndNoBudgetIsUsed) {
  const TwoDevices on;
  EmulatedDeviceOptions options;
  options.budget_bytes = 0;
  options.most_blocks = 1;
  const auto importer = NewDevice(options);
  const auto memory = Open(*importer, *on.exporter);
  const auto imported = Import(*memory, on.handle, kBytes);
  EXPECT_EQ(importer->used_bytes(), 0u);
  EXPECT_TRUE(importer->memory().Allocate(0).ok());
  ASSERT_TRUE(Fill(on.exporter->default_stream(), *on.block, 2).ok());
  ASSERT_TRUE(on.exporter->Synchronize().ok());
  EXPECT_EQ(Read(importer->default_stream(), *imported), Equal(kCount, 2));
}

TEST(EmulatedSharingTest, BlocksOfAllSizesAreImported) {
  const auto exporter = NewExporter(), importer = NewDevice();
  const auto memory = Open(*importer, *exporter);
  EmulatedStream& stream = exporter->default_stream();
  for (const size_t count : {size_t{1}, size_t{16}, size_t{1024}, size_t{10'000}}) {
    const auto block = NewFloats(stream, count);
    ASSERT_TRUE(Fill(stream, *block, 3).ok());
    ASSERT_TRUE(exporter->Synchronize().ok());
    std::promise<void> released;
    auto imported = Import(*memory, Export(*exporter, *block), count * sizeof(float),
                           [&] { released.set_value(); });
    EXPECT_EQ(Read(importer->default_stream(), *imported), Equal(count, 3));
    imported.reset();
    released.get_future().wait();  // then the exporter may free the block
  }
  const auto empty = NewFloats(stream, 0);
  EXPECT_EQ(Import(*memory, Export(*exporter, *empty), 0)->size(), 0u);
}

TEST(EmulatedSharingTest, AnImportOutlivesItsExporterAndTheOpenMemory) {
  TwoDevices on;
  const auto imported = on.Import();
  on.memory.reset();
  on.block.reset();
  on.exporter.reset();
  EXPECT_EQ(Read(on.importer->default_stream(), *imported).size(), kCount);
}

// What the process that exports says to the one that imports.
struct Exported {
  int descriptor = -1;
  char handle[16] = {};
};

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reading = UniqueFd(ends[0]);
    writing = UniqueFd(ends[1]);
  }
  UniqueFd reading, writing;
};

// Exports a block of threes until it reads a byte.
[[noreturn]] void RunExporter(int from_importer, int to_importer) {
  const auto device = NewExporter();
  const auto block = NewFloats(device->default_stream(), kCount);
  if (!Fill(device->default_stream(), *block, 3).ok() || !device->Synchronize().ok()) _exit(1);
  const auto descriptor = device->sharing()->Descriptor();
  const auto handle = device->sharing()->Export(*block);
  Exported exported;
  if (!descriptor.ok() || !handle.ok() || handle->size() != sizeof(exported.handle)) _exit(2);
  exported.descriptor = descriptor->get();
  std::memcpy(exported.handle, handle->data(), handle->size());
  if (write(to_importer, &exported, sizeof(exported)) != sizeof(exported)) _exit(3);
  char end = 0;
  _exit(read(from_importer, &end, 1) == 1 ? 0 : 4);
}

TEST(EmulatedSharingTest, AnotherProcessReadsABlockAlsoAfterTheEndOfItsOwner) {
  Pipe to, from;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    to.writing = UniqueFd();
    from.reading = UniqueFd();
    RunExporter(to.reading.get(), from.writing.get());
  }
  to.reading = UniqueFd();
  from.writing = UniqueFd();  // otherwise the end of the child would not be seen
  Exported exported;
  ASSERT_EQ(read(from.reading.get(), &exported, sizeof(exported)),
            static_cast<ssize_t>(sizeof(exported)));
  const std::string path = absl::StrCat("/proc/", child, "/fd/", exported.descriptor);
  const auto importer = NewDevice();
  const auto memory = Open(*importer, UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  std::promise<void> released;
  auto imported = Import(*memory, std::string(exported.handle, sizeof(exported.handle)), kBytes,
                         [&] { released.set_value(); });
  EXPECT_EQ(Read(importer->default_stream(), *imported), Equal(kCount, 3));
  EXPECT_EQ(write(to.writing.get(), "e", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Read(importer->default_stream(), *imported), Equal(kCount, 3));
  imported.reset();
  released.get_future().wait();
}

// ---- release

// Both streams read late. When the block is released, they have read.
TEST(EmulatedSharingTest, ABlockIsReleasedBehindTheWorkOfAllItsUsers) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const TwoDevices on(seed);
    EmulatedStream& home = on.importer->default_stream();
    EmulatedStream& other = AddStreamTo(*on.importer);
    std::shared_ptr<Block> read_at_home, read_elsewhere;
    std::promise<std::vector<std::vector<float>>> released;
    auto imported = on.Import([&] {
      released.set_value({Floats(*read_at_home), Floats(*read_elsewhere)});
    });
    ASSERT_TRUE(other.AlsoUses(*imported).ok());
    read_at_home = StartReading(home, *imported);
    read_elsewhere = StartReading(other, *imported);
    imported.reset();
    for (const std::vector<float>& read : released.get_future().get())
      EXPECT_EQ(read, Equal(kCount, 1)) << "seed " << seed;
  }
}

// With seed 0, only work that somebody waits for is done.
TEST(EmulatedSharingTest, AReleaseWaitsForNobodyElse) {
  const TwoDevices on;
  EmulatedStream& other = AddStreamTo(*on.importer);
  EmulatedStream& idle = AddStreamTo(*on.importer);
  const auto block = NewFloats(idle, kCount);
  const auto later = RecordOn(idle);
  std::promise<void> released;
  std::shared_ptr<Block> imported;
  {
    const StreamScope scope(other);
    imported = on.Import([&] { released.set_value(); });
  }
  const auto at_home = NewFloats(on.importer->default_stream(), kCount);
  const auto also_later = RecordOn(on.importer->default_stream());
  imported.reset();
  released.get_future().wait();
  EXPECT_FALSE(later->passed());
  EXPECT_FALSE(also_later->passed());
}

TEST(EmulatedSharingTest, EachImportOfABlockIsReleased) {
  const TwoDevices on;
  std::promise<void> first_released, second_released;
  auto first = on.Import([&] { first_released.set_value(); });
  auto second = on.Import([&] { second_released.set_value(); });
  EXPECT_EQ(first->data(), second->data());
  first.reset();
  first_released.get_future().wait();
  EmulatedStream& other = AddStreamTo(*on.importer);
  EXPECT_TRUE(other.AlsoUses(*second).ok());
  EXPECT_TRUE(on.importer->default_stream().WaitForUsers(*second).ok());
  EXPECT_EQ(Read(on.importer->default_stream(), *second), Equal(kCount, 1));
  second.reset();
  second_released.get_future().wait();
  EXPECT_EQ(Read(on.importer->default_stream(), *on.Import()), Equal(kCount, 1));
}

TEST(EmulatedSharingTest, ALostDeviceReleasesAndImportsNothingMore) {
  const TwoDevices on;
  std::promise<void> released;
  auto imported = on.Import([&] { released.set_value(); });
  const auto read = StartReading(on.importer->default_stream(), *imported);
  on.importer->Lose("it fell off the bus");
  EXPECT_EQ(on.memory->Import(on.handle, kBytes, [] {}).status(), on.importer->health());
  EXPECT_EQ(on.importer->sharing()->Open(*on.exporter->sharing()->Descriptor()).status(),
            on.importer->health());
  imported.reset();
  released.get_future().wait();
  EXPECT_EQ(Floats(*read), Equal(kCount, 0));
  on.exporter->Lose("so did this one");
  EXPECT_EQ(on.exporter->sharing()->Descriptor().status(), on.exporter->health());
  EXPECT_EQ(on.exporter->sharing()->Export(*on.block).status(), on.exporter->health());
}

TEST(EmulatedSharingTest, ADeviceEndsBehindTheReleaseOfItsImports) {
  TwoDevices on;
  bool released = false;
  auto imported = on.Import([&] { released = true; });
  const auto read = StartReading(on.importer->default_stream(), *imported);
  on.importer.reset();  // its block keeps it alive
  EXPECT_FALSE(released);
  imported.reset();
  EXPECT_TRUE(released);
  const absl::Status refused = on.memory->Import(on.handle, kBytes, [] {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("emu:0 allocates nothing more"));
}

// ---- what comes from other processes is checked

void ExpectRefused(UniqueFd descriptor, const std::string& why) {
  const auto device = NewDevice();
  const absl::Status refused = device->sharing()->Open(std::move(descriptor)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("emu:0 cannot map memory of another "
                                                        "process: the passed descriptor ",
                                                        why)));
}

UniqueFd SealedFile(size_t bytes, int seals) {
  UniqueFd file(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

TEST(EmulatedSharingTest, DescriptorsOfOtherFilesAreRefused) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  ExpectRefused(UniqueFd(), "is no memory file");
  ExpectRefused(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), "is no memory file");
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL})
    ExpectRefused(SealedFile(4 * kPageBytes, kSeals & ~seal), "has the seals ");
  for (const size_t bytes :
       {size_t{0}, kPageBytes, 2 * kPageBytes + 1, (size_t{4} << 40) + kPageBytes})
    ExpectRefused(SealedFile(bytes, kSeals), absl::StrCat("has ", bytes, " bytes"));
  const UniqueFd file = SealedFile(4 * kPageBytes, kSeals);
  const std::string path = absl::StrCat("/proc/self/fd/", file.get());
  ExpectRefused(UniqueFd(open(path.c_str(), O_WRONLY | O_CLOEXEC)), "is not open for reading");
}

TEST(EmulatedSharingTest, AnExportersFileCannotChangeItsSize) {
  const auto exporter = NewExporter();
  const auto descriptor = exporter->sharing()->Descriptor();
  ASSERT_TRUE(descriptor.ok());
  EXPECT_NE(ftruncate(descriptor->get(), 0), 0);
  EXPECT_NE(ftruncate(descriptor->get(), off_t{1} << 40), 0);
  EXPECT_NE(fcntl(descriptor->get(), F_GETFD) & FD_CLOEXEC, 0);
}

std::string HandleOf(uint64_t place, uint64_t bytes) {
  const uint64_t parts[] = {place, bytes};
  return std::string(reinterpret_cast<const char*>(parts), sizeof(parts));
}

TEST(EmulatedSharingTest, HandlesThatNameNoBlockAreRefused) {
  const TwoDevices on;
  uint64_t place = 0;
  std::memcpy(&place, on.handle.data(), sizeof(place));
  ASSERT_EQ(on.handle, HandleOf(place, kBytes));
  const auto expect_refused = [&](const std::string& handle, size_t bytes, const char* why) {
    const absl::Status refused =
        on.memory->Import(handle, bytes, [] { ADD_FAILURE() << "released"; }).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(
        refused.message(),
        HasSubstr(absl::StrCat("emu:0 cannot map a block of another process: the handle ", why)));
  };
  constexpr uint64_t kMost = ~uint64_t{0};
  const size_t file_bytes = [&] {
    const UniqueFd file = *on.exporter->sharing()->Descriptor();
    return static_cast<size_t>(lseek(file.get(), 0, SEEK_END));
  }();
  expect_refused("", kBytes, "has 0 bytes, not 16");
  expect_refused(on.handle.substr(1), kBytes, "has 15 bytes");
  expect_refused(on.handle + "0", kBytes, "has 17 bytes");
  expect_refused(on.handle, kBytes - 1, "names a block of 400 bytes, and one of 399 is asked for");
  expect_refused(HandleOf(place + 1, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(place + kBlockAlignment, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(place % kPageBytes, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(file_bytes - 448, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(file_bytes, 0), 0, "names 0 bytes at ");
  expect_refused(HandleOf(kMost, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(kMost - 447, kBytes), kBytes, "names 400 bytes at ");
  expect_refused(HandleOf(place, kMost), kMost, "names 18446744073709551615 bytes at ");
  expect_refused(HandleOf(0, kMost - 63), kMost - 63, "names 18446744073709551552 bytes at ");
  expect_refused(HandleOf(place, file_bytes), file_bytes, "names ");
  const auto imported = on.Import();
  for (const size_t bytes : {kBytes - 1, kBytes + kPageBytes})
    expect_refused(HandleOf(place, bytes), bytes, "names ");
  EXPECT_EQ(Read(on.importer->default_stream(), *imported), Equal(kCount, 1));
}

// The exporter has freed a block that was not released, and has used its memory again.
TEST(EmulatedSharingTest, ABlockInTheMemoryOfAnImportedOneIsRefused) {
  const auto exporter = NewExporter(), importer = NewDevice();
  const auto memory = Open(*importer, *exporter);
  constexpr size_t kFloats = 4 * kPageBytes / sizeof(float);
  auto block = NewFloats(exporter->default_stream(), kFloats);
  std::promise<void> released;
  auto imported =
      Import(*memory, Export(*exporter, *block), block->size(), [&] { released.set_value(); });
  block.reset();
  ASSERT_TRUE(exporter->Synchronize().ok());
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 2; ++i) blocks.push_back(NewFloats(exporter->default_stream(), kCount));
  for (const auto& each : blocks) {
    const absl::Status refused = memory->Import(Export(*exporter, *each), kBytes, [] {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("of which others have not been released"));
  }
  imported.reset();
  released.get_future().wait();
  for (const auto& each : blocks) Import(*memory, Export(*exporter, *each), kBytes);
}

TEST(EmulatedSharingTest, OnlyOwnBlocksAreExported) {
  const TwoDevices on;
  const auto both = NewExporter();
  const auto imported = Import(*Open(*both, *on.exporter), on.handle, kBytes);
  const absl::Status passed_on = both->sharing()->Export(*imported).status();
  EXPECT_EQ(passed_on.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(passed_on.message(), HasSubstr("emu:0 does not pass on a block"));
  for (const auto& foreign :
       {NewFloats(on.importer->default_stream(), kCount), *NewHeapAllocator()->Allocate(kBytes)})
    EXPECT_EQ(both->sharing()->Export(*foreign).status().code(),
              absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::testing

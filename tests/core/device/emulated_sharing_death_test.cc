// Tests of the mistakes that the emulated device finds in the use of memory that is shared.

#include <cstddef>
#include <future>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/device/emulated_kernels.h"
#include "tests/core/device/two_devices.h"

namespace psd::testing {
namespace {

class EmulatedSharingDeathTest : public ::testing::Test {
 protected:
  EmulatedSharingDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

struct WriteAt {
  void operator()(size_t /*i*/, const DeviceArray<float>& array, ptrdiff_t index) const {
    array.data()[index] = 1;
  }
};
struct ReadAt {
  void operator()(size_t /*i*/, const DeviceArray<float>& array, ptrdiff_t index) const {
    const volatile float element = array.data()[index];
    static_cast<void>(element);
  }
};
struct ReadChecked {
  void operator()(size_t /*i*/, const DeviceArray<const float>& array, size_t index) const {
    const volatile float element = array[index];
    static_cast<void>(element);
  }
};

template <typename Body>
void Access(Body body, ptrdiff_t index) {
  const TwoDevices on;
  const auto imported = on.Import();
  static_cast<void>(on.importer->default_stream().Launch("Access", 1, body,
                                                         DeviceArray<float>(*imported), index));
  static_cast<void>(on.importer->Synchronize());
}

TEST_F(EmulatedSharingDeathTest, AKernelWritesToAnImportedBlock) {
  EXPECT_DEATH(Access(WriteAt(), 0),
               "emu:0: the operation Access on stream 0 of emu:0 wrote to memory of another "
               "process, which may only be read");
}

TEST_F(EmulatedSharingDeathTest, ACopyWritesToAnImportedBlock) {
  EXPECT_DEATH(
      {
        const TwoDevices on;
        const auto imported = on.Import();
        const std::vector<std::byte> bytes(TwoDevices::kBytes);
        static_cast<void>(on.importer->CopyIn(imported->data(), bytes.data(), bytes.size()));
      },
      "emu:0: the operation CopyIn on stream 0 of emu:0 wrote to memory of another process");
}

TEST_F(EmulatedSharingDeathTest, AnAddressIsBehindTheEndOfAnImportedBlock) {
  EXPECT_DEATH(Access(ReadAt(), 112),
               "emu:0: the operation Access on stream 0 of emu:0 used memory of another process "
               "in no block");
}

TEST_F(EmulatedSharingDeathTest, AnIndexOfAnImportedBlockIsOutOfRange) {
  EXPECT_DEATH(
      {
        const TwoDevices on;
        const auto imported = on.Import();
        static_cast<void>(on.importer->default_stream().Launch("ReadChecked", 1, ReadChecked(),
                                                               DeviceArray<const float>(*imported),
                                                               TwoDevices::kCount));
        static_cast<void>(on.importer->Synchronize());
      },
      "the operation ReadChecked on stream 0 of emu:0 used element 100 of an array of 100");
}

TEST_F(EmulatedSharingDeathTest, TheHostReadsAnImportedBlock) {
  const TwoDevices on;
  const auto imported = on.Import();
  EXPECT_DEATH(static_cast<void>(*reinterpret_cast<volatile float*>(imported->data())),
               "emu:0: the host followed an address of the device's memory");
}

// It has not declared its use.
TEST_F(EmulatedSharingDeathTest, AStreamReadsABlockThatWasReleased) {
  EXPECT_DEATH(
      {
        const TwoDevices on;
        std::promise<void> released;
        auto imported = on.Import([&] { released.set_value(); });
        EmulatedStream& other = AddStreamTo(*on.importer);
        const auto read = StartReading(other, *imported);
        imported.reset();
        released.get_future().wait();
        static_cast<void>(on.importer->Synchronize());
      },
      "the operation CopyOut on stream 1 of emu:0 used memory of another process in no block");
}

TEST_F(EmulatedSharingDeathTest, AStreamReadsMemoryThatIsMappedNoMore) {
  EXPECT_DEATH(
      {
        TwoDevices on;
        std::promise<void> released;
        auto imported = on.Import([&] { released.set_value(); });
        const auto read = StartReading(AddStreamTo(*on.importer), *imported);
        on.memory.reset();
        imported.reset();
        released.get_future().wait();
        static_cast<void>(on.importer->Synchronize());
      },
      "the operation CopyOut on stream 1 of emu:0 used memory of another process");
}

TEST_F(EmulatedSharingDeathTest, ADeviceThatDoesNotExportIsAskedForItsMemory) {
  const auto device = NewDevice();
  EXPECT_DEATH(static_cast<void>(device->sharing()->Descriptor()), "the device exports its memory");
}

}  // namespace
}  // namespace psd::testing

# Toolchain file: GNU Arm Embedded for a Cortex-M33. Nothing can be linked without a linker script, so CMake's
# trial programs are libraries.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_ASM_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(NEUTRON_CPU_FLAGS "-mcpu=cortex-m33 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16" CACHE STRING "The processor")
set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
set(CMAKE_C_FLAGS_INIT "${NEUTRON_CPU_FLAGS}")
set(CMAKE_CXX_FLAGS_INIT "${NEUTRON_CPU_FLAGS}")
set(CMAKE_ASM_FLAGS_INIT "${NEUTRON_CPU_FLAGS}")

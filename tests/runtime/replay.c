/* The inputs that a fuzzer has kept, through its target once more, where there is no libFuzzer.
 *
 *     replay FILE             FILE holds {u32 bytes, input}*
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int main(int count, char **arguments) {
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL) return 2;
    uint32_t bytes = 0;
    unsigned runs = 0;
    for (; fread(&bytes, sizeof bytes, 1, file) == 1; ++runs) {
        uint8_t *data = (uint8_t *)malloc(bytes + 1u);
        if (data == NULL || fread(data, 1, bytes, file) != bytes) return 2;
        LLVMFuzzerTestOneInput(data, bytes);
        free(data);
    }
    fclose(file);
    printf("%u inputs\n", runs);
    return 0;
}

// Numbers with their units. Digits are grouped as the language does it; a unit is always there, with a space that does not break.

import { isKnown } from './frame.mjs';
import { language, t } from './texts.mjs';

export { isKnown };

const GAP = '\u00a0';

function digits(value, fraction) {
  return new Intl.NumberFormat(language(), { minimumFractionDigits: fraction, maximumFractionDigits: fraction }).format(value);
}

/** Three digits that matter, no more. */
function short(value) {
  const size = Math.abs(value);
  return digits(value, size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : 2);
}

export function count(value) {
  return isKnown(value) ? digits(value, 0) : t('unknown');
}

export function bytes(value) {
  if (!isKnown(value)) return t('unknown');
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? digits(size, 0) : short(size)}${GAP}${units[unit]}`;
}

export function rate(value) {
  return isKnown(value) ? `${short(value)}${GAP}/s` : t('unknown');
}

export function bytesRate(value) {
  return isKnown(value) ? `${bytes(value)}/s` : t('unknown');
}

/** A number without a unit that may have a fraction, such as entries a sync. */
export function number(value) {
  return isKnown(value) ? short(value) : t('unknown');
}

export function percent(value) {
  return isKnown(value) ? `${short(value * 100)}${GAP}%` : t('unknown');
}

/** A short time in the unit that fits. */
export function seconds(value) {
  if (!isKnown(value)) return t('unknown');
  if (value === 0) return `0${GAP}ms`;
  if (value < 0.001) return `${short(value * 1e6)}${GAP}µs`;
  if (value < 1) return `${short(value * 1e3)}${GAP}ms`;
  if (value < 60) return `${short(value)}${GAP}s`;
  return span(value);
}

/** A long time in its two greatest units. */
export function span(value) {
  if (!isKnown(value)) return t('unknown');
  const whole = Math.max(0, Math.floor(value));
  const steps = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = steps.findIndex(([size]) => whole >= size);
  if (first < 0) return `0${GAP}s`;
  const [size, unit] = steps[first];
  const next = steps[first + 1];
  const rest = next ? Math.floor((whole % size) / next[0]) : 0;
  return `${digits(Math.floor(whole / size), 0)}${GAP}${unit}${rest > 0 ? ` ${rest}${GAP}${next[1]}` : ''}`;
}

/** The time of day of a moment in ms since 1970. */
export function clockTime(ms) {
  return new Intl.DateTimeFormat(language(), { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false }).format(ms);
}
